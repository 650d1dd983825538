"""From a request's text to token ids, by the served model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from jinja2 import TemplateError
from transformers import AutoConfig, PreTrainedTokenizerBase

from cluster.checkpoints.loading import load_tokenizer
from cluster.checkpoints.registry import Checkpoint, resolve
from cluster.checkpoints.token_bytes import TokenBytes


class ConversationError(ValueError):
    """The chat template does not take this conversation; the message is a sentence."""


class Prompting(Protocol):
    """What a request is checked and encoded against."""

    vocab_size: int
    context_length: int

    def encode(self, text: str) -> list[int]:
        """Raw text, with what the tokenizer puts before every text, once."""

    def encode_inside(self, text: str) -> list[int]:
        """Text as it stands inside another, with nothing put before it."""

    def token_bytes(self, token: int) -> bytes:
        """A token's UTF-8, which may be a part of a character."""

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """(role, content) pairs up to where the model's answer begins. Raises ConversationError."""


class TokenizerPrompting:
    """Prompting by a checkpoint's tokenizer and configuration."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._bytes = TokenBytes(tokenizer)
        self.vocab_size = vocab_size
        self.context_length = context_length

    def encode(self, text: str) -> list[int]:
        bos = self._tokenizer.bos_token
        # A text that brings its own beginning would get a second one.
        special = not (isinstance(bos, str) and text.startswith(bos))
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def encode_inside(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def token_bytes(self, token: int) -> bytes:
        return self._bytes.of(token)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise ConversationError("this model has no chat template; send a prompt instead of messages")
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            ids = self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=True, return_dict=False
            )
        except TemplateError as error:
            raise ConversationError(
                f"the model's chat template refuses this conversation: {error}"
            ) from error
        return cast(list[int], ids)


def load_prompting(model: str, cache_dir: str | None, max_context: int) -> TokenizerPrompting:
    """max_context: tokens that a verifier can hold for one request. Raises CheckpointError."""
    checkpoint = resolve(model, Path(cache_dir) if cache_dir else None)
    config = _text_config(checkpoint)
    context = min(int(config.max_position_embeddings), max_context)
    return TokenizerPrompting(load_tokenizer(checkpoint), int(config.vocab_size), context)


def _text_config(checkpoint: Checkpoint) -> Any:
    revision = {} if checkpoint.is_local else {"revision": checkpoint.revision}
    return AutoConfig.from_pretrained(checkpoint.path, **revision).get_text_config()
