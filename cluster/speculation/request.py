"""A request as the gateway hands it to a verifier, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cluster.speculation.controls import Controls
from cluster.speculation.law import Law
from cluster.speculation.provenance import Provenance, SoFar
from cluster.speculation.sampling import Sampling


class FinishReason(StrEnum):
    """Why an answer ended: end of sequence or a stop string; max_tokens or the context's end; an end after
    calls of functions, which the gateway tells apart."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Validated by the gateway: a prompt of at least one token that leaves room for max_tokens.

    stop_ids: tokens that end the answer and are no part of it, as the model's own ends are unless
    ignore_eos; logprobs: how many alternatives to each token are told, None for no log-probabilities at
    all; resumed_ids: the beginning of the output, from an answer that was interrupted, at most
    max_tokens; grammar: of the answer, as llguidance writes it, empty for free text; tenant: who asks,
    with whose requests alone it shares what is cached; traceparent: W3C trace context of the request's root
    span, empty without tracing; seed_drawn: the seed was drawn at random for this request alone;
    adapter: LoRA adapter of the target, by name, empty for none.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    law: Law
    requested_law: Law
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    domain: str = ""
    traceparent: str = ""
    seed_drawn: bool = False
    controls: Controls = field(default_factory=Controls)
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    resumed_ids: tuple[int, ...] = ()
    grammar: str = ""
    tenant: str = ""
    adapter: str = ""

    @property
    def trace_id(self) -> str:
        """The second field of the traceparent, empty without tracing."""
        return self.traceparent[3:35]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability under the model, before any parameter of the request; top: the most
    probable tokens with theirs, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """Text and tokens that are final. One commit may carry several tokens. One of text alone is the last:
    what a stop string left of the token that it begins in.

    logprobs: one for each token, none where they were not asked for; so_far: of the answer with this, None
    at its end.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    so_far: SoFar | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer. cached_tokens: of the input, those that were not computed anew."""

    reason: FinishReason
    input_tokens: int
    output_tokens: int
    provenance: Provenance
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The only event of a request that was not taken: the verifier's queue is full."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unfollowable:
    """The last event of a request whose own parameters leave nothing to go on with. field: of the request."""

    field: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that the verifier could not finish. leaving: for a reason of the verifier's
    own, so that another may go on with it."""

    detail: str
    leaving: bool = False


GenerationEvent = Committed | Finished | Refused | Unfollowable | Failed
