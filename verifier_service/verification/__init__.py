"""The one way to emit a token: every round, with drafts or without, ends in `verify`."""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification import block as block_law
from verifier_service.verification import coupled, none, rejection

_LAWS = {
    "none": none.verify,
    "coupled": coupled.verify,
    "rejection": rejection.verify,
    "block": block_law.verify,
}

__all__ = ["verify"]


def verify(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Decides how much of a block is kept and what follows it.

    target_probs: float32 or float64 [N+1, V], row k the target's distribution after all transforms
    given the first k drafts; block: N drafted tokens; noise.base: absolute position of row 0.
    Raises ValueError for an unknown law and for rows that do not fit the block.
    """
    if law.name not in _LAWS:
        raise ValueError(f"unknown verification law {law.name!r}; known: {', '.join(_LAWS)}")
    if target_probs.shape[0] != len(block.tokens) + 1:
        raise ValueError(
            f"{len(block.tokens)} drafts need {len(block.tokens) + 1} rows, got {target_probs.shape[0]}"
        )
    return _LAWS[law.name](target_probs, block, noise)
