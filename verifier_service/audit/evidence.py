"""What a verdict reveals about its law: the randomised rank of each token, and whether drafts were kept.

A rank orders the vocabulary at a position by a key and is u = P(before the token) + V · P(tied with it),
with V uniform. Given the past, and that the round came so far, u is uniform whatever the key, as long as the
key is known before the token is. So 1 - 2u has mean 0, and so has "kept" less the probability of keeping.

The past is the emitted tokens, the plans and how earlier rounds ended. Not the drafts, nor whether a token
was accepted: that a token is a correction says that it is not distributed as p. It follows which key is used:

- rejection, block: q / p, at positions that have a draft; at others nothing is bet. Most faults of these laws
  favour or starve the tokens that the drafter favours.
- coupled, none: p itself, at every position. A draft shares the noise that decides the token, so neither it
  nor its place may choose what is bet on; the drafter's influence is for replays to find.

Every token that was decided counts, those that a stop string later cuts off included: leaving out a token for
what it is would be a choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from verifier_service.verification.kernel import Position, positions


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one round, in order. ranks: 1 - 2u of each token that is bet on; kept: of each draft that was
    decided, 1 or 0 less the probability that it is kept. All in [-1, 1]."""

    ranks: tuple[float, ...] = ()
    kept: tuple[float, ...] = ()


def evidence(
    law: Law, target_probs: Tensor, block: DraftBlock, verdict: Verdict, uniforms: Sequence[float]
) -> Evidence:
    """What a round under a strict law shows; of a lossy law, nothing.

    target_probs, block: as they were given to `verify`; uniforms: one in (0, 1) for each token of the
    verdict, used for nothing else. Raises ProposalError as `verify` does.
    """
    if not LAWS[law.name].lossless:
        return Evidence()
    if not LAWS[law.name].sends_rows:
        return Evidence(ranks=_ranks_by_target(target_probs, verdict, uniforms))
    reached = verdict.accepted + (verdict.accepted < len(block.tokens))
    drafted = [position for position, _ in zip(positions(target_probs, block), range(reached), strict=False)]
    ranks = tuple(
        rank_by_proposal(position, token, v)
        for position, token, v in zip(drafted, verdict.tokens, uniforms, strict=False)
    )
    expected = _kept_by_block(drafted) if law.name == "block" else [_shared(each, 1.0) for each in drafted]
    kept = tuple(float(k < verdict.accepted) - chance for k, chance in enumerate(expected))
    return Evidence(ranks, kept)


def _ranks_by_target(target_probs: Tensor, verdict: Verdict, uniforms: Sequence[float]) -> tuple[float, ...]:
    # A chain's rows are the first ones; a tree's those of the path.
    path = verdict.path
    rows = target_probs if path is None else target_probs[[0, *(draft + 1 for draft in path)]]
    rows = rows[: len(verdict.tokens)]
    return tuple(rank for rank in ranks_by_target(rows, verdict.tokens, uniforms) if rank is not None)


def ranks_by_target(rows: Tensor, tokens: Sequence[int], uniforms: Sequence[float]) -> list[float | None]:
    """1 - 2u of one token in each row, the most probable tokens first; None where a row leaves no choice.

    rows: [tokens, V], each summing to 1, on any device.
    """
    ranks: list[float | None] = []
    for p, token, v in zip(rows.cpu().numpy(), tokens, uniforms, strict=False):
        own = p[token]
        if own == 0.0:
            # Excluded by its row: after all others.
            ranks.append(-1.0)
            continue
        # Few tokens of a peaked row are as probable as this one.
        kept = p[p >= own]
        tied = float(own) * int(np.count_nonzero(kept == own))
        up_to = min(float(kept.sum()), 1.0)
        ranks.append(None if tied >= 1.0 else 1.0 - 2.0 * (up_to - (1.0 - v) * tied))
    return ranks


def rank_by_proposal(position: Position, token: int, v: float) -> float:
    """1 - 2u with those tokens first that the proposal favours; those off its support are tied at the end."""
    ratios = [q / p if p > 0.0 else math.inf for q, p in zip(position.q, position.p, strict=True)]
    if token not in position.ids:
        before = math.fsum(position.p)
        return 1.0 - 2.0 * min(before + v * max(1.0 - before, 0.0), 1.0)
    own = ratios[position.ids.index(token)]
    before = math.fsum(p for p, ratio in zip(position.p, ratios, strict=True) if ratio > own)
    tied = math.fsum(p for p, ratio in zip(position.p, ratios, strict=True) if ratio == own)
    return 1.0 - 2.0 * min(before + v * tied, 1.0)


def _shared(position: Position, reach: float) -> float:
    """Σ min(reach · p, q); at reach 1 this is 1 - TV(p, q), the probability that rejection keeps a draft."""
    return min(math.fsum(min(reach * p, q) for p, q in zip(position.p, position.q, strict=True)), 1.0)


def _kept_by_block(drafted: Sequence[Position]) -> list[float]:
    """The probability that block verification keeps draft i + 1, given that it keeps i and what these are:
    1 - S_i / P_i in the terms of verification/block.py."""
    chances, reach = [], 1.0
    for position in drafted:
        # S = P - Σ min(P p, q). A round that came here has a positive reach.
        chances.append(min(_shared(position, reach) / reach, 1.0))
        reach = min(1.0, reach * position.p[position.at] / position.q[position.at])
    return chances
