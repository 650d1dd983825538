"""What an answer says of the way it was sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import Claim, Law
from cluster.speculation.messages import DrafterIdentity


@dataclass(frozen=True, slots=True)
class Numerics:
    """What bitwise equality is relative to.

    logit_discrepancy: where rows are not invariant, the largest difference seen between a row's logits
    alone and in a block; 0 where they are, or where it was not measured.
    """

    weights_hash: str
    dtype: str
    kernels: str
    threads: int
    row_invariant: bool
    logit_discrepancy: float = 0.0


@dataclass(frozen=True, slots=True)
class SoFar:
    """What the rounds of an answer that is not over amounted to. Fields as in Provenance, and of tokens those
    that have been handed on."""

    claim: Claim
    drafters: tuple[DrafterIdentity, ...]
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    correction_tokens: int
    bonus_tokens: int
    fallbacks: tuple[tuple[str, int], ...]
    meanwhile_rounds: int
    uncertain_positions: int | None


def told_of_resumed(tokens: int) -> str:
    """The sentence on tokens that an answer begins with and did not emit."""
    return f"{tokens} tokens were resumed, of which all this says nothing"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Counted after discards: accepted + corrections + bonuses = emitted tokens.

    fallbacks: reason -> rounds that asked for a block and were decoded without one; meanwhile_rounds: those
    that decoded a token while their block was under way, which is no fault; distortion: None
    under a strict law; uncertain_positions: tokens that a difference of logits like the measured one could
    have changed, None where none could or it was not measured, and where more than logits and the
    verifier's noise decides; verifiers_lost: how many were lost before the one that ended the answer; what
    is counted of them is what they had told when their last tokens were sent.
    """

    requested_law: Law
    effective_law: Law
    claim: Claim
    numerics: Numerics
    seed: int
    reasons: tuple[str, ...] = ()
    drafters: tuple[DrafterIdentity, ...] = ()
    rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    correction_tokens: int = 0
    bonus_tokens: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    meanwhile_rounds: int = 0
    trace_id: str = ""
    verifier_replica: str = ""
    distortion: DistortionTotals | None = None
    uncertain_positions: int | None = None
    verifiers_lost: int = 0

    @property
    def emitted_tokens(self) -> int:
        return self.accepted_tokens + self.correction_tokens + self.bonus_tokens

    @property
    def fallback_rounds(self) -> int:
        return sum(self.fallbacks.values())

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens over rounds, the bonus or correction counted; 0 without rounds."""
        return self.emitted_tokens / self.rounds if self.rounds else 0.0
