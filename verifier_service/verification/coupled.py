"""The drafter-invariant law: Daliri, Musco, Suresh, arXiv 2408.07978, section 3.

Position k emits y_k = argmax_v(log p_k[v] + G_k[v]), G keyed by (request seed, absolute position),
and goes on while y_k is the drafted token. The output is a function of seed and target alone, so how
a draft was made, pruned, delayed or lost cannot change it.
"""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise


def verify(target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Walks the chain; the noise of a position is made only if the walk reaches it."""
    field = noise.field
    emitted: list[int] = []
    for depth, row in enumerate(target_probs):
        emitted.append(field.winner(noise.base + depth, row))
        if depth == len(block.tokens) or emitted[-1] != block.tokens[depth]:
            break
    return Verdict(tokens=tuple(emitted), accepted=len(emitted) - 1)
