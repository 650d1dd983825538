"""The one way to emit a token: every round, with drafts or without, ends in `verify`."""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.catalogue import checked
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification import block as block_law
from verifier_service.verification import collaborative, coupled, none, rejection, truncation

_STRICT = {
    "none": none.verify,
    "coupled": coupled.verify,
    "rejection": rejection.verify,
    "block": block_law.verify,
}
_LOSSY = {"truncation": truncation.verify, "collaborative": collaborative.verify}

__all__ = ["verify"]


def verify(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Decides how much of a block is kept and what follows it.

    target_probs: float32 or float64 [N+1, V], row 0 the target's distribution after all transforms given
    the committed prefix, row k+1 given draft k and those before it (in a tree, its ancestors); block: N
    drafted tokens; noise.base: absolute position of row 0.
    Raises ValueError for an unknown law, parameters that it does not take, and rows that do not fit the
    block; ProposalError, a ValueError, for a block that the law cannot verify.
    """
    if target_probs.shape[0] != len(block.tokens) + 1:
        raise ValueError(
            f"{len(block.tokens)} drafts need {len(block.tokens) + 1} rows, got {target_probs.shape[0]}"
        )
    if law.name in _STRICT:
        return _STRICT[law.name](target_probs, block, noise)
    law = checked(law)
    return _LOSSY[law.name.partition(":")[0]](law, target_probs, block, noise)
