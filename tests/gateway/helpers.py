"""A tokenizer of one token a character, a gateway spec around it, and events that no verifier made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.gateway.prompting import ConversationError
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.tools.conversation import Turn
from cluster.gateway.tools.offer import Function
from cluster.speculation.law import COUPLED, Claim
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import Finished, FinishReason

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
    max_requests=8,
)


class Characters:
    vocab_size = 256
    context_length = 100

    def encode(self, text: str) -> list[int]:
        return [ord(character) % 256 for character in text]

    def encode_inside(self, text: str) -> list[int]:
        return self.encode(text)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def encode_chat(self, turns: Sequence[Turn], functions: Sequence[Function] = ()) -> list[int]:
        if turns[0].role == "assistant":
            raise ConversationError("the first turn is the user's")
        told = "".join(f"<{function.name}>" for function in functions)
        return self.encode(told + "".join(f"<{turn.role}>{turn.content}" for turn in turns))


FINISHED = Finished(
    FinishReason.STOP,
    input_tokens=2,
    output_tokens=2,
    cached_tokens=1,
    provenance=Provenance(
        requested_law=COUPLED,
        effective_law=COUPLED,
        claim=Claim.EXACT_LAW,
        numerics=Numerics("abc", "float32", "kernels", 2, False),
        seed=7,
        rounds=1,
        accepted_tokens=1,
        draft_tokens=1,
        bonus_tokens=1,
    ),
)


class FakeEvents:
    """Yields events, raises those that are exceptions, and at the end waits for ever if `hang`."""

    def __init__(self, *events, hang=False):
        self.events, self.hang, self.cancelled = events, hang, False
        self.waiting = asyncio.Event()

    async def __aiter__(self):
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event
        if self.hang:
            self.waiting.set()
            await asyncio.Event().wait()

    def cancel(self):
        self.cancelled = True
