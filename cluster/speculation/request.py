"""A request as the gateway hands it to a verifier, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.speculation.law import Law
from cluster.speculation.provenance import Provenance
from cluster.speculation.sampling import Sampling


class FinishReason(StrEnum):
    """Why an answer ended: end of sequence or a stop string; max_tokens or the context's end."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Validated by the gateway: a prompt of at least one token that leaves room for max_tokens.

    traceparent: W3C trace context of the request's root span, empty without tracing; seed_drawn: the seed was
    drawn at random for this request alone.
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


@dataclass(frozen=True, slots=True)
class Committed:
    """Text and tokens that are final. One commit may carry several tokens, or text alone."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer."""

    reason: FinishReason
    input_tokens: int
    output_tokens: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Refused:
    """The only event of a request that was not taken: the verifier's queue is full."""

    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that the verifier could not finish."""

    detail: str


GenerationEvent = Committed | Finished | Refused | Failed
