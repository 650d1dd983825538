"""Sparse proposals: the distribution that a draft was drawn from, small enough to be sent.

Truncate and renormalise FIRST, then draw from the truncated row and send exactly its float32 bits. Any
proposal is lossless so long as the token came from it; drawing from the full row and recording a reduced
one is not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from cluster.speculation.messages import DraftBlock, SparseRows

# Entries kept of a row; on peaked rows more than this gain little acceptance.
PROPOSAL_SIZE = 16


class ProposalError(ValueError):
    """A block's recorded proposal is not a distribution that can have given its tokens."""


@dataclass(frozen=True, slots=True)
class SparseRow:
    """One position's proposal: distinct ids and their float32 weights, all positive and finite.

    It stands for the distribution weights / sum(weights), normalised in float64 by both services.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def probs(self) -> tuple[float, ...]:
        """The distribution, in the order of ids."""
        total = math.fsum(self.weights)
        return tuple(weight / total for weight in self.weights)

    def draw(self, u: float) -> int:
        """The token at u in (0, 1) of the row's cumulative distribution."""
        cumulative = list(accumulate(self.weights))
        # Rounding can carry u · total no further than to the total itself.
        return self.ids[min(bisect_right(cumulative, u * cumulative[-1]), len(self.ids) - 1)]


def truncate(probs: Tensor, size: int = PROPOSAL_SIZE) -> SparseRow:
    """The `size` most probable tokens of a row, renormalised and rounded to the float32 that is sent.

    probs: [V], float32 or float64, non-negative. Raises ValueError for a row without a positive entry or
    with one that is not finite.
    """
    top = torch.topk(probs, min(size, probs.shape[0]))
    values = top.values.double()
    total = float(values.sum())
    if not 0.0 < total < math.inf:
        raise ValueError(f"a proposal needs a positive, finite sum, got {total:g}")
    weights = (values / total).float().tolist()
    # In the order of ids, which does not depend on how ties were sorted.
    kept = sorted(
        (token, weight) for token, weight in zip(top.indices.tolist(), weights, strict=True) if weight
    )
    return SparseRow(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))


def pack(rows: Sequence[SparseRow]) -> SparseRows:
    """A block's rows as they are sent: ids [N, K], probs float32 [N, K], unused places 0."""
    width = max((len(row.ids) for row in rows), default=0)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    probs = torch.zeros(len(rows), width)
    for k, row in enumerate(rows):
        ids[k, : len(row.ids)] = torch.tensor(row.ids)
        probs[k, : len(row.ids)] = torch.tensor(row.weights)
    return SparseRows(ids, probs)


def unpack(block: DraftBlock, vocab: int) -> list[SparseRow]:
    """A chain's proposals, one a token; one-hot where the block has none.

    Raises ProposalError for a tree, for rows that are not distributions over [0, vocab) and for a token
    whose recorded probability is 0.
    """
    if block.parents is not None:
        raise ProposalError("this law takes a chain of drafts, got a tree")
    if block.proposal is None:
        rows = [SparseRow((token,), (1.0,)) for token in block.tokens]
    else:
        ids, probs = block.proposal.ids, block.proposal.probs
        if ids.ndim != 2 or ids.shape != probs.shape or ids.shape[0] != len(block.tokens):
            raise ProposalError(
                f"{len(block.tokens)} drafts need as many proposals, got ids {list(ids.shape)} and "
                f"probabilities {list(probs.shape)}"
            )
        rows = [
            _checked(k, row_ids, row_probs)
            for k, (row_ids, row_probs) in enumerate(zip(ids.tolist(), probs.tolist(), strict=True))
        ]
    for k, (token, row) in enumerate(zip(block.tokens, rows, strict=True)):
        if token not in row.ids:
            raise ProposalError(f"draft {k} is token {token}, which its proposal gives no probability")
        if min(row.ids) < 0 or max(row.ids) >= vocab:
            raise ProposalError(f"proposal {k} has a token outside a vocabulary of {vocab}")
    return rows


def _checked(k: int, ids: list[int], probs: list[float]) -> SparseRow:
    if not all(0.0 <= weight < math.inf for weight in probs):
        raise ProposalError(f"proposal {k} has a probability that is negative or not finite")
    kept = [(token, weight) for token, weight in zip(ids, probs, strict=True) if weight > 0.0]
    if not kept:
        raise ProposalError(f"proposal {k} has no positive probability")
    if len({token for token, _ in kept}) < len(kept):
        raise ProposalError(f"proposal {k} names a token twice")
    return SparseRow(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))
