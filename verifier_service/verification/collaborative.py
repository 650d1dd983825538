"""Lossy laws between p and q: the output law is computed first, then verified against strictly.

How far a law relaxes at a position is its own parameter or `max_distortion`, whichever allows less:
lenience accepts with min(1, p / (lenience · q)); interpolation keeps the weight lambda on p; mentored
relaxes until KL(p ‖ out) reaches max_kl; cactus takes delta. `ceiling` bounds out / p. Where p is one-hot
they all are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cluster.speculation.distortion import NO_DISTORTION, Distortion
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification.distortion import of_position, remainder
from verifier_service.verification.kernel import OutputLaw, Position, strict, verify_against
from verifier_service.verification.output_laws import RULES, Rule

# A degree is found to this relative precision, always on the side that relaxes less.
_PRECISION = 1e-15


def verify(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Raises ProposalError for a tree and for a proposal that cannot have given the block."""
    spent: list[Distortion] = []

    def output(position: Position) -> OutputLaw:
        out = output_law(law, position)
        spent.append(of_position(position, out))
        return out

    verdict = verify_against(target_probs, block, noise, output)
    if verdict.accepted == len(block.tokens):
        spent.append(NO_DISTORTION)
    return replace(verdict, distortion=tuple(spent))


def output_law(law: Law, position: Position) -> OutputLaw:
    """The law of the token emitted at a drafted position; law: as `catalogue.checked` gives it."""
    rule = RULES[law.name]
    params = dict(law.params)
    ceiling = params.get("ceiling", math.inf)
    # Beyond this, nothing changes: every token with q > p has all that it is going to get.
    over = [(p, q) for p, q in zip(position.p, position.q, strict=True) if q > p > 0.0]
    degree = max((rule.most(p, q) for p, q in over), default=rule.strict)
    if "lenience" in params:
        degree = min(degree, 1.0 / params["lenience"])
    if "lambda" in params:
        degree = min(degree, 1.0 - params["lambda"])
    if "delta" in params:
        degree = min(degree, params["delta"])
    if "max_kl" in params:
        degree = _largest(
            rule, degree, lambda d: _kl(position, rule.output(position, d, ceiling)), params["max_kl"]
        )
    if "max_distortion" in params:

        def distance(d: float) -> float:
            return math.fsum(min(rule.upper(p, q, d), ceiling * p) - p for p, q in over)

        degree = _largest(rule, degree, distance, params["max_distortion"])
    # Said apart, so that a law that may not relax is the strict one to the last bit.
    return strict(position) if degree <= rule.strict else rule.output(position, degree, ceiling)


def _largest(rule: Rule, most: float, spent: Callable[[float], float], budget: float) -> float:
    """The largest degree up to `most` at which `spent`, which rises with it, is within the budget."""
    if budget == 0.0:
        return rule.strict
    if spent(most) <= budget:
        return most
    low, high = rule.strict, most
    while high - low > _PRECISION * high:
        middle = low + 0.5 * (high - low)
        if not low < middle < high:
            break
        if spent(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def _kl(position: Position, law: OutputLaw) -> float:
    """KL(p ‖ out) in nats, infinite where out gives nothing to what p has."""
    pairs = [(p, out) for p, out in zip(position.p, law.on, strict=True) if p > 0.0]
    if remainder(position) > 0.0:
        pairs.append((remainder(position), law.scale * remainder(position)))
    if any(out <= 0.0 for _, out in pairs):
        return math.inf
    return math.fsum(p * math.log(p / out) for p, out in pairs)
