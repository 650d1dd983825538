"""The one way to emit a token: every round, with drafts or without, ends in `verify`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cluster.speculation.catalogue import checked
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification import block as block_law
from verifier_service.verification import collaborative, coupled, none, rejection, truncation
from verifier_service.verification.walk import Walk, run, run_together

_WALKS = {"none": none.walk, "coupled": coupled.walk}
_STRICT = {"rejection": rejection.verify, "block": block_law.verify}
_LOSSY = {"truncation": truncation.verify, "collaborative": collaborative.verify}

__all__ = ["verify", "verify_together"]


def verify(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Decides how much of a block is kept and what follows it.

    target_probs: float32 or float64 [N+1, V], row 0 the target's distribution after all transforms given
    the committed prefix, row k+1 given draft k and those before it (in a tree, its ancestors); block: N
    drafted tokens; noise.base: absolute position of row 0.
    Raises ValueError for an unknown law, parameters that it does not take, and rows that do not fit the
    block; ProposalError, a ValueError, for a block that the law cannot verify.
    """
    if (walk := _walk(law, target_probs, block, noise)) is not None:
        return run(walk, noise)
    if law.name in _STRICT:
        return _STRICT[law.name](target_probs, block, noise)
    law = checked(law)
    return _LOSSY[law.name.partition(":")[0]](law, target_probs, block, noise)


def verify_together(cases: Sequence[tuple[Law, Tensor, DraftBlock, Noise]]) -> list[Verdict]:
    """`verify` of the sequences of a step, in order: the same verdicts, for less where laws race.

    The rows of all cases are of one vocabulary, on one device. Raises what `verify` raises.
    """
    verdicts: dict[int, Verdict] = {}
    walks: dict[int, Walk] = {}
    for index, (law, target_probs, block, noise) in enumerate(cases):
        if (walk := _walk(law, target_probs, block, noise)) is not None:
            walks[index] = walk
        else:
            verdicts[index] = verify(law, target_probs, block, noise)
    together = run_together(list(walks.values()), [cases[index][3] for index in walks])
    verdicts.update(zip(walks, together, strict=True))
    return [verdicts[index] for index in range(len(cases))]


def _walk(law: Law, target_probs: Tensor, block: DraftBlock, noise: Noise) -> Walk | None:
    """The walk of a law that has one. Raises ValueError for rows that do not fit the block."""
    if target_probs.shape[0] != len(block.tokens) + 1:
        raise ValueError(
            f"{len(block.tokens)} drafts need {len(block.tokens) + 1} rows, got {target_probs.shape[0]}"
        )
    if law.params and law.name in {*_WALKS, *_STRICT}:
        raise ValueError(
            f"law {law.name} takes no parameters, got {', '.join(name for name, _ in law.params)}"
        )
    return _WALKS[law.name](target_probs, block, noise.base) if law.name in _WALKS else None
