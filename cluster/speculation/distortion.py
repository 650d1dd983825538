"""How far a lossy law took an answer from the target's distribution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distortion:
    """One emitted position: its exact output law against the target p.

    tv: total variation distance, ½ Σ |out - p|; overshoot: max out / p; kl: KL(out ‖ p) in nats.
    """

    tv: float
    overshoot: float
    kl: float


NO_DISTORTION = Distortion(tv=0.0, overshoot=1.0, kl=0.0)


@dataclass(frozen=True, slots=True)
class DistortionTotals:
    """The ledger of a request: sums and maxima over its emitted tokens.

    tv_total bounds the distance of the answer's whole law from the target's, kl_total is the expectation's
    sample of their divergence.
    """

    tokens: int = 0
    tv_total: float = 0.0
    tv_max: float = 0.0
    overshoot_max: float = 1.0
    kl_total: float = 0.0

    @property
    def tv_mean(self) -> float:
        """Per token; 0 without tokens."""
        return self.tv_total / self.tokens if self.tokens else 0.0

    def plus(self, positions: Iterable[Distortion]) -> DistortionTotals:
        """With the positions of one more round; tokens that were discarded are left out by the caller."""
        added = list(positions)
        return DistortionTotals(
            tokens=self.tokens + len(added),
            tv_total=self.tv_total + sum(each.tv for each in added),
            tv_max=max([self.tv_max, *(each.tv for each in added)]),
            overshoot_max=max([self.overshoot_max, *(each.overshoot for each in added)]),
            kl_total=self.kl_total + sum(each.kl for each in added),
        )
