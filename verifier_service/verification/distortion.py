"""The distortion of one emitted position, from the rows that decided it: no sampling, no estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cluster.speculation.distortion import Distortion
from verifier_service.verification.kernel import OutputLaw, Position

# Of a row's sum in float64, to which the probabilities are normalised.
_ROUNDING = 1e-14


def measure(tokens: Iterable[tuple[float, float]], groups: Iterable[tuple[float, float]]) -> Distortion:
    """Compares an output law with the target p.

    tokens: (out(x), p(x)) of single tokens; groups: (p's mass, out / p) of the remaining ones, taken
    together where out is one multiple of p.
    """
    pairs = [*tokens, *((scale * mass, mass) for mass, scale in groups)]
    ratios = [(out, out / p if p > 0.0 else math.inf) for out, p in pairs if out > 0.0]
    return Distortion(
        tv=0.5 * math.fsum(abs(out - p) for out, p in pairs),
        overshoot=max(ratio for _, ratio in ratios),
        # KL is non-negative; rounding is not.
        kl=max(0.0, math.fsum(out * math.log(ratio) for out, ratio in ratios)),
    )


def of_position(position: Position, law: OutputLaw) -> Distortion:
    """The distortion of a law that is a multiple of p off the proposal's support."""
    return measure(zip(law.on, position.p, strict=True), [(remainder(position), law.scale)])


def remainder(position: Position) -> float:
    """The target's probability off the proposal's support, 0 where it is no more than rounding."""
    rest = 1.0 - math.fsum(position.p)
    return rest if rest > _ROUNDING else 0.0
