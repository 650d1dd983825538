"""Block verification: Sun et al., arXiv 2403.10444, algorithm 2.

With P_0 = 1 and P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)), the longest prefix i is kept whose own uniform
is below h_i = S_i / (S_i + 1 - P_i), S_i = sum_v (P_i p_{i+1}(v) - q_{i+1}(v))+, and h_N = P_N. It keeps at
least as many drafts as rejection on average, and as many on one-hot proposals. Exact under the conditions of
rejection, and only if the draft's noise is new in every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise, Purpose
from verifier_service.verification.kernel import Position, bonus, draw_residual, positions


def verify(target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Raises ProposalError for a tree and for a proposal that cannot have given the block."""
    drafted = list(positions(target_probs, block))
    reach = reaches(drafted)
    length = len(drafted)
    # A prefix of reach 0 is kept with probability 0, so the search need not begin beyond it.
    kept = max(k for k, value in enumerate(reach) if value > 0.0)
    while kept > 0 and noise.uniform(Purpose.ACCEPT, kept - 1) >= acceptance(kept, reach, drafted):
        kept -= 1
    if kept == length:
        return Verdict((*block.tokens, bonus(target_probs[-1], noise)), length)
    after = drafted[kept]
    rest = [max(reach[kept] * p - q, 0.0) for p, q in zip(after.p, after.q, strict=True)]
    token = draw_residual(after, rest, reach[kept], noise.uniform(Purpose.RESIDUAL, 0))
    return Verdict((*block.tokens[:kept], token), kept)


def reaches(drafted: Sequence[Position]) -> list[float]:
    """P_0 to P_N."""
    reach = [1.0]
    for position in drafted:
        reach.append(min(1.0, reach[-1] * position.p[position.at] / position.q[position.at]))
    return reach


def acceptance(kept: int, reach: Sequence[float], drafted: Sequence[Position]) -> float:
    """h_kept, the probability of keeping `kept` drafts once no longer prefix was kept."""
    if kept == len(drafted):
        return reach[kept]
    if reach[kept] == 1.0:
        # The limit where S is 0 as well: the next proposal is the target itself.
        return 1.0
    after = drafted[kept]
    # Off the proposal's support (P p - q)+ is P p, so the sum is P less what the support takes away.
    shared = math.fsum(min(reach[kept] * p, q) for p, q in zip(after.p, after.q, strict=True))
    excess = max(reach[kept] - shared, 0.0)
    return excess / (excess + 1.0 - reach[kept])
