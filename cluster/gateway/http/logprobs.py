"""Log-probabilities as OpenAI's two dialects have them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from truedraft.v1 import inference_pb2 as pb

Json = dict[str, Any]


def chat(told: Sequence[pb.TokenLogprob]) -> Json | None:
    """Of a chat; None if they were not asked for."""
    if not told:
        return None
    return {"content": [_entry(each) | {"top_logprobs": list(map(_entry, each.top))} for each in told]}


def _entry(told: pb.TokenLogprob) -> Json:
    return {"token": _text(told.text), "logprob": told.logprob, "bytes": list(told.text)}


class Completion:
    """Of a text completion, whose offsets run through the pieces of one answer."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._offset = 0

    def take(self, told: Sequence[pb.TokenLogprob]) -> Json | None:
        """The next piece; None if there is nothing to tell."""
        if not told:
            return None
        offsets = []
        for each in told:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(each.text))
        return {
            "tokens": [_text(each.text) for each in told],
            "token_logprobs": [each.logprob for each in told],
            "top_logprobs": [{_text(other.text): other.logprob for other in each.top} for each in told],
            "text_offset": offsets,
        }


def _text(utf8: bytes) -> str:
    """A token as a string; one that is a part of a character is spelt out, as OpenAI does."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
