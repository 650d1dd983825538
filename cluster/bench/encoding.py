"""Texts as the gateway would encode them, for an engine in this process."""

from __future__ import annotations

from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.tools.conversation import Turn
from verifier_service.build import LoadedTarget


def prompting(loaded: LoadedTarget) -> TokenizerPrompting:
    return _prompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)


# It reads the whole vocabulary, and what that leaves behind is collected, for a third of a second, in the
# middle of what is measured.
@lru_cache(maxsize=4)
def _prompting(tokenizer: PreTrainedTokenizerBase, vocab_size: int, context: int) -> TokenizerPrompting:
    return TokenizerPrompting(tokenizer, vocab_size, context)


def chat(loaded: LoadedTarget, text: str) -> tuple[int, ...]:
    """One turn of a user, up to where the model's answer begins."""
    return tuple(prompting(loaded).encode_chat([Turn("user", text)]))
