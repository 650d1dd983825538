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
from cluster.gateway.tools.conversation import Turn, in_words
from cluster.gateway.tools.offer import Function
from cluster.gateway.tools.wording import BEGIN


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

    def encode_chat(self, turns: Sequence[Turn], functions: Sequence[Function] = ()) -> list[int]:
        """A conversation up to where the model's answer begins. functions: that it is told of. Raises
        ConversationError."""


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

    def encode_chat(self, turns: Sequence[Turn], functions: Sequence[Function] = ()) -> list[int]:
        if not self._tokenizer.chat_template:
            raise ConversationError("this model has no chat template; send a prompt instead of messages")
        tools: list[Any] | None = [function.described() for function in functions] or None
        # A template without calls would leave functions out without a word, one with calls of another form
        # would ask for what the grammar of answers does not allow.
        if BEGIN not in self._tokenizer.get_chat_template(tools=tools):
            turns, tools = in_words(turns, functions), None
        conversation = [turn.described() for turn in turns]
        try:
            ids = self._tokenizer.apply_chat_template(
                conversation, tools=tools, add_generation_prompt=True, return_dict=False
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
