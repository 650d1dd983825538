"""What a round reveals about its law: whether its drafts were drawn from their rows, whether they were kept
as often as the law has it, and the randomised rank of each token.

A rank orders the vocabulary at a position by a key and is u = P(before the token) + V · P(tied with it),
with V uniform. Given the past, u is uniform whatever the key, as long as the key is known before the token
is, and 1 - 2u has mean 0. The past is another one for each kind of evidence:

- Of a draft's rank in the row that it came with, the most probable tokens first: the drafts before it. All
  that came are bet on, whether or not the round reached them: that it did depends on them.
- Of a decision to keep drafts: all drafts of the round and the decisions before it.
- Of an emitted token's rank: the emitted tokens, the plans and how earlier rounds ended, and that the round
  came so far. Not the drafts, nor whether a token was accepted: that a token is a correction says that it is
  not distributed as p. It follows which key is used:
  - rejection, block: q / p, at positions that have a draft; at others nothing is bet. Most faults of these
    laws favour or starve the tokens that the drafter favours.
  - coupled, none: p itself, at every position. A draft shares the noise that decides the token, so neither it
    nor its place may choose what is bet on; the drafter's influence is for replays to find.

Every token that was decided counts, those that a stop string later cuts off included: leaving out a token for
what it is would be a choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.proposal import SparseRow, unpack
from verifier_service.audit.betting import Decision
from verifier_service.audit.standing import standing
from verifier_service.verification.block import acceptance, reaches
from verifier_service.verification.kernel import Position, positions


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one round, in order. ranks: 1 - 2u of each token that is bet on, in [-1, 1]; drawn: the same of each
    draft in its own row; kept: each decision on drafts."""

    ranks: tuple[float, ...] = ()
    drawn: tuple[float, ...] = ()
    kept: tuple[Decision, ...] = ()


def evidence(
    law: Law, target_probs: Tensor, block: DraftBlock, verdict: Verdict, uniforms: Sequence[float]
) -> Evidence:
    """What a round under a strict law shows; of a lossy law, nothing.

    target_probs, block: as they were given to `verify`; uniforms: one in (0, 1) for each token of the
    verdict, then one for each draft, used for nothing else. Raises ProposalError as `verify` does.
    """
    if not LAWS[law.name].lossless:
        return Evidence()
    if not LAWS[law.name].sends_rows:
        return Evidence(ranks=_ranks_by_target(target_probs, verdict, uniforms))
    reached = verdict.accepted + (verdict.accepted < len(block.tokens))
    looked_at = len(block.tokens) if law.name == "block" else reached
    drafted = [each for each, _ in zip(positions(target_probs, block), range(looked_at), strict=False)]
    ranks = tuple(
        rank_by_proposal(position, token, v)
        for position, token, v in zip(drafted[:reached], verdict.tokens, uniforms, strict=False)
    )
    of_drafts = uniforms[len(verdict.tokens) :]
    rows = unpack(block, target_probs.shape[1])
    drawn = tuple(
        _rank_in_row(row, token, v)
        for row, token, v in zip(rows, block.tokens, of_drafts, strict=False)
        if len(row.ids) > 1
    )
    decisions = _by_block if law.name == "block" else _one_by_one
    return Evidence(ranks, drawn, tuple(decisions(drafted, verdict.accepted)))


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
        before, alike = standing(p, own)
        tied = float(own) * alike
        ranks.append(None if tied >= 1.0 else 1.0 - 2.0 * min(before + v * tied, 1.0))
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


def _rank_in_row(row: SparseRow, token: int, v: float) -> float:
    """1 - 2u of a draft, the most probable tokens of its row first."""
    own = row.probs[row.ids.index(token)]
    before = math.fsum(q for q in row.probs if q > own)
    tied = math.fsum(q for q in row.probs if q == own)
    return 1.0 - 2.0 * min(before + v * tied, 1.0)


def _one_by_one(drafted: Sequence[Position], accepted: int) -> Iterator[Decision]:
    """Of rejection, on the drafts that were reached: x is kept with probability min(1, p(x) / q(x))."""
    for k, position in enumerate(drafted):
        yield Decision(k < accepted, min(1.0, position.p[position.at] / position.q[position.at]))


def _by_block(drafted: Sequence[Position], accepted: int) -> Iterator[Decision]:
    """Of block verification, from the whole block down: the first k drafts are kept with probability h_k,
    once no more of them were."""
    reach = reaches(drafted)
    for kept in range(len(drafted), max(accepted, 1) - 1, -1):
        yield Decision(kept == accepted, acceptance(kept, reach, drafted))
