"""A tokenizer of one token a character, and a gateway spec around it."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.gateway.prompting import ConversationError
from cluster.gateway.spec import GatewaySpec

SPEC = GatewaySpec(
    model="m",
    served_name="toy",
    cache_dir=None,
    laws=("none", "coupled", "truncation:min_p"),
    default_law="coupled",
    default_max_tokens=16,
    max_tokens=64,
    max_stop_strings=2,
    max_context=100,
    first_token_timeout_s=0.3,
)


class Characters:
    vocab_size = 256
    context_length = 100

    def encode(self, text: str) -> list[int]:
        return [ord(character) % 256 for character in text]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        if messages[0][0] == "assistant":
            raise ConversationError("the first turn is the user's")
        return [token for role, content in messages for token in self.encode(f"<{role}>{content}")]
