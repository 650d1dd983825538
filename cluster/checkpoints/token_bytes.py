"""What a token is in bytes: vocabularies spell them in characters of their own."""

from __future__ import annotations

import json
import re

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Of a fast tokenizer, byte-level or with spaces written as ▁ and <0x…> for single bytes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.added_tokens_decoder)
        pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
        # Of nested decoders, too, the type is named somewhere inside.
        byte_level = '"ByteLevel"' in json.dumps(pipeline["decoder"])
        self._alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
        self._decode = self._byte_level if byte_level else self._spaced

    def of(self, token: int) -> bytes:
        """Empty for an id that the tokenizer does not have."""
        spelling = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(spelling, str):
            return b""
        return spelling.encode() if token in self._special else self._decode(spelling)

    def _byte_level(self, spelling: str) -> bytes:
        return bytes(self._alphabet[character] for character in spelling)

    def _spaced(self, spelling: str) -> bytes:
        if found := _BYTE.fullmatch(spelling):
            return bytes([int(found[1], 16)])
        return spelling.replace("▁", " ").encode()
