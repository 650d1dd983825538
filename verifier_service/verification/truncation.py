"""Lossy laws that keep a draft for lying in a set A(p), whatever it was proposed with.

min_p:    A = {v : p(v) >= min_p · max p}, as in SpecCascade;
typical:  A = {v : p(v) >= min(epsilon, delta · exp(-H(p)))}, Medusa (arXiv 2401.10774), section 2.3.2.

The first draft outside A gives way to a draw from p on A, and so does the bonus token. With a drafted
position's proposal q, out = q·1_A + (1 - q(A))·p_A: shaped by q, not by p (arXiv 2607.26627). A strict
law on the truncated target has the same set and no distortion.
"""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.distortion import Distortion
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise, Purpose
from verifier_service.verification.distortion import measure, remainder
from verifier_service.verification.kernel import Position, draw, positions, row_mass


def verify(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """The proposal decides nothing; it is what the distortion is computed from.

    Raises ProposalError for a tree and for a proposal that cannot have given the block.
    """
    spent: list[Distortion] = []
    for k, position in enumerate(positions(target_probs, block)):
        kept = truncated(law, position.row, position.mass)
        spent.append(_drafted(position, kept))
        if not bool(kept[block.tokens[k]] > 0.0):
            token = draw(kept, noise.uniform(Purpose.RESIDUAL, 0))
            return Verdict((*block.tokens[:k], token), k, distortion=tuple(spent))
    kept = truncated(law, target_probs[-1], row_mass(target_probs[-1]))
    inside = float(kept.sum())
    spent.append(measure([], [(inside, 1.0 / inside), (max(0.0, 1.0 - inside), 0.0)]))
    token = draw(kept, noise.uniform(Purpose.BONUS, 0))
    return Verdict((*block.tokens, token), len(block.tokens), distortion=tuple(spent))


def truncated(law: Law, row: Tensor, mass: float) -> Tensor:
    """p where it lies in A, 0 elsewhere: float64 [V].

    law: as `catalogue.checked` gives it; row, mass: [V] and its sum, by which p = row / mass.
    """
    p = row.double() / mass
    if law.name == "truncation:min_p":
        edge = _value(law, "min_p") * p.max()
    else:
        # exp(-H): one over the number of tokens that a uniform row of the same entropy has.
        edge = (_value(law, "delta") * p.xlogy(p).sum().exp()).clamp(max=_value(law, "epsilon"))
    return p.where(p >= edge, 0.0)


def _value(law: Law, name: str) -> float:
    return dict(law.params)[name]


def _drafted(position: Position, kept: Tensor) -> Distortion:
    """The distortion at a drafted position; kept: p on A."""
    inside = float(kept.sum())
    on = [value > 0.0 for value in kept[list(position.ids)].tolist()]
    refused = sum(q for q, member in zip(position.q, on, strict=True) if not member)
    scale = refused / inside
    tokens = [
        (q + scale * p if member else 0.0, p) for q, p, member in zip(position.q, position.p, on, strict=True)
    ]
    others = max(0.0, inside - sum(p for p, member in zip(position.p, on, strict=True) if member))
    return measure(tokens, [(others, scale), (max(0.0, remainder(position) - others), 0.0)])
