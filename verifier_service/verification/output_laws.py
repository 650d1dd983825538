"""The output laws of the collaborative family, in closed form from p and q.

Each is a curve between p and q: `degree` says how far it goes from p, and `ceiling` bounds out / p. Off the
proposal's support every one of them is a multiple of p that is at most 1, and a token with q(x) <= p(x) is
never given more than p(x). The distance from p is therefore what the others gain: TV(out, p) is the sum of
upper(x) - p(x) over q(x) > p(x), the `upper` of each rule being the curve there.

Sources: arXiv 2607.26627 (lenience, interpolation, and the cap), 2609.30474 (mentored), 2604.04987 (Cactus).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from verifier_service.verification.distortion import remainder
from verifier_service.verification.kernel import OutputLaw, Position


@dataclass(frozen=True, slots=True)
class Rule:
    """strict: the degree that leaves p as it is; upper(p, q, degree): the uncapped curve at q > p > 0, which
    rises with the degree; most(p, q): the least degree at which it is highest there; output: the law."""

    strict: float
    upper: Callable[[float, float, float], float]
    most: Callable[[float, float], float]
    output: Callable[[Position, float, float], OutputLaw]


def cap(position: Position, wanted: list[float], scale: float, ceiling: float) -> OutputLaw:
    """Cuts a curve t at ceiling · p and gives what is missing to where it lies below p, in proportion.

    out = min(t, c p) + M (p - min(t, c p))+ / Σ (p - min(t, c p))+, M the missing mass; t is `wanted` on the
    proposal's support and scale · p, with scale at most 1, elsewhere. A token that the target excludes gets
    nothing, even under an infinite ceiling.
    """
    kept = [min(t, ceiling * p) if p > 0.0 else 0.0 for t, p in zip(wanted, position.p, strict=True)]
    short = [max(p - k, 0.0) for k, p in zip(kept, position.p, strict=True)]
    others = remainder(position)
    missing = 1.0 - math.fsum(kept) - scale * others
    room = math.fsum(short) + (1.0 - scale) * others
    # The share lies in [0, 1]; where there is no room, nothing but rounding is missing.
    share = min(max(missing / room, 0.0), 1.0) if room > 0.0 else 0.0
    return OutputLaw(
        tuple(k + share * s for k, s in zip(kept, short, strict=True)), scale + share * (1.0 - scale)
    )


def _lenience(position: Position, ratio: float, ceiling: float) -> OutputLaw:
    """Accept with min(1, p / (l q)), l = 1 / ratio, else draw from (p - q)+; this is cap(q, ratio)."""
    return cap(position, list(position.q), 0.0, min(ratio, ceiling))


def _interpolation(position: Position, weight: float, ceiling: float) -> OutputLaw:
    """(1 - weight) p + weight q, capped."""
    mixed = [(1.0 - weight) * p + weight * q for p, q in zip(position.p, position.q, strict=True)]
    return cap(position, mixed, 1.0 - weight, ceiling)


def _mentored(position: Position, ratio: float, ceiling: float) -> OutputLaw:
    """clip(q, floor · p, ratio · p), the floor solved so that it sums to 1.

    The sum is piecewise linear in the floor, with a corner where it passes q / p of a token.
    """
    ratio = min(ratio, ceiling)
    pairs = list(zip(position.p, position.q, strict=True))
    high = math.fsum(min(q, ratio * p) for p, q in pairs if q > p)
    low = sorted((q / p, p, q) for p, q in pairs if p > 0.0 and q <= p)
    lifted, floor = 0, 1.0
    while True:
        mass = remainder(position) + math.fsum(p for _, p, _ in low[:lifted])
        if mass > 0.0:
            floor = (1.0 - high - math.fsum(q for _, _, q in low[lifted:])) / mass
        if lifted == len(low) or (mass > 0.0 and floor <= low[lifted][0]):
            break
        lifted += 1
    floor = min(max(floor, 0.0), 1.0)
    on = tuple(min(q, ratio * p) if q > p else max(q, floor * p) for p, q in pairs)
    return OutputLaw(on, floor)


def _cactus_curve(p: float, degree: float) -> float:
    return min(p + math.sqrt(2.0 * degree * p * (1.0 - p)), 1.0) if p < 1.0 else 1.0


def _cactus(position: Position, degree: float, ceiling: float) -> OutputLaw:
    """A drafted x is verified against p with p(x) raised to t(x) and the rest shrunk to match; capped."""
    pairs = list(zip(position.p, position.q, strict=True))
    curve = [_cactus_curve(p, degree) if p > 0.0 else 0.0 for p in position.p]
    out = [min(q, t) for q, t in zip(position.q, curve, strict=True)]
    scale = 0.0
    for (p, q), t in zip(pairs, curve, strict=True):
        if q <= t:
            continue
        # The rejected part of x goes to (h - q)+, h = p (1 - t(x)) / (1 - p(x)) away from x.
        shrunk = (1.0 - t) / (1.0 - p)
        rest = [max(shrunk * p_v - q_v, 0.0) for p_v, q_v in pairs]
        total = math.fsum(rest) + shrunk * remainder(position)
        if total > 0.0:
            out = [o + (q - t) * r / total for o, r in zip(out, rest, strict=True)]
            scale += (q - t) * shrunk / total
    return cap(position, out, min(scale, 1.0), ceiling)


RULES: dict[str, Rule] = {
    "collaborative:lenience": Rule(
        strict=1.0,
        upper=lambda p, q, ratio: min(q, ratio * p),
        most=lambda p, q: q / p,
        output=_lenience,
    ),
    "collaborative:interpolation": Rule(
        strict=0.0,
        upper=lambda p, q, weight: (1.0 - weight) * p + weight * q,
        most=lambda p, q: 1.0,
        output=_interpolation,
    ),
    "collaborative:mentored": Rule(
        strict=1.0,
        upper=lambda p, q, ratio: min(q, ratio * p),
        most=lambda p, q: q / p,
        output=_mentored,
    ),
    "collaborative:cactus": Rule(
        strict=0.0,
        upper=lambda p, q, degree: min(q, _cactus_curve(p, degree)),
        most=lambda p, q: (q - p) ** 2 / (2.0 * p * (1.0 - p)),
        output=_cactus,
    ),
}
