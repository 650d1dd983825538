"""Texts as the gateway would encode them, for an engine in this process."""

from __future__ import annotations

from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.tools.conversation import Turn
from verifier_service.build import LoadedTarget


def prompting(loaded: LoadedTarget) -> TokenizerPrompting:
    return TokenizerPrompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)


def chat(loaded: LoadedTarget, text: str) -> tuple[int, ...]:
    """One turn of a user, up to where the model's answer begins."""
    return tuple(prompting(loaded).encode_chat([Turn("user", text)]))
