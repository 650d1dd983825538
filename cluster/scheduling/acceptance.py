"""What a block of k drafts may be expected to bring, estimated from rounds that are over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cluster.scheduling.history import History, Round

# A round counts this much less with every later one, so that some twenty rounds decide.
_MEMORY = 0.95
# Before anything is known: worth a try.
_FIRST_GUESS, _LATER_GUESS = 0.7, 0.2
# How seldom others may have had a draft, a request may have more.
_SAYS_LEAST = 0.2
# In positions tried: how strongly the first guess, the experience of others, and a request's average over all
# positions stand against what a request has seen itself.
_GUESS_WEIGHT, _EXPERIENCE_WEIGHT, _POSITION_WEIGHT = 8.0, 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """For blocks of 0, 1, … drafts one after another. tokens: expected to be emitted, the verifier's own
    included; rows: expected to be drafted, since a drafter may have less to say than it is asked for;
    guessed: the chance that all of them are kept and the drafter guesses the verifier's own token as well;
    tree: they branch, and nothing is drafted ahead of them; says: the chance that there is any draft."""

    tokens: tuple[float, ...]
    rows: tuple[float, ...]
    guessed: tuple[float, ...]
    tree: bool = False
    says: float = 1.0

    def spoken(self) -> Outlook:
        """The same where there is a draft."""
        if not 0.0 < self.says < 1.0:
            return self
        tokens, rows, guessed = (
            tuple(least + (each - least) / self.says for each in values)
            for values, least in ((self.tokens, 1.0), (self.rows, 0.0), (self.guessed, 0.0))
        )
        return Outlook(tokens, rows, guessed, self.tree)


def outlook(history: History, most: int, width: int = 1) -> Outlook:
    """Up to `most` drafts one after another, `width` at each position.

    Acceptance is estimated for each position from the rounds that reached it, and drawn to the request's
    average, as this is to that of others: a block says little of its far positions. How often a later sibling
    is right where the first is not is counted over all positions together.
    """
    counts = _counts(history.rounds, most, _MEMORY**history.idle, _MEMORY)
    others = history.experience
    prior = (others.accepted + _GUESS_WEIGHT * _FIRST_GUESS) / (others.tried + _GUESS_WEIGHT)
    # What is not yet known is worth finding out.
    prior = min(1.0, prior + math.sqrt(prior * (1.0 - prior) / (others.tried + _GUESS_WEIGHT)))
    average = (sum(counts.kept) + _EXPERIENCE_WEIGHT * prior) / (sum(counts.tried) + _EXPERIENCE_WEIGHT)
    # Whether a drafter says anything, and whether it goes on, are two things.
    says = (counts.given[0] + _says(history)) / (counts.asked[0] + 1.0) if most else 1.0
    goes_on = (sum(counts.given[1:]) + 1.0) / (sum(counts.asked[1:]) + 1.0)
    wrong = (sum(counts.given_wrong) + 1.0) / (sum(counts.asked_wrong) + 1.0)
    chances = [
        (k + _POSITION_WEIGHT * average) / (t + _POSITION_WEIGHT)
        for k, t in zip(counts.kept, counts.tried, strict=True)
    ]
    going = [says] + [goes_on] * most
    chain = _outlook(chances, going, wrong, average)
    return chain if width == 1 else _branched(chain, chances, going, _siblings(history, width))


def _says(history: History) -> float:
    """Whether a drafter says anything, before the request has asked it. Where asking costs nothing, what
    others had of it does not matter: it may be otherwise here."""
    if not history.draft.price:
        return 1.0
    others = history.experience
    return max(_SAYS_LEAST, (others.given + _GUESS_WEIGHT) / (others.asked + _GUESS_WEIGHT))


@dataclass(frozen=True, slots=True)
class _Siblings:
    """right: the chance that one behind the first is right where that is not; continued: that drafts go on
    behind it; spread: drafts at a position, on average."""

    right: float
    continued: float
    spread: float


def _siblings(history: History, width: int) -> _Siblings:
    others, memory = history.experience, _MEMORY**history.idle
    prior = (others.later_right + _GUESS_WEIGHT * _LATER_GUESS) / (others.later_tried + _GUESS_WEIGHT)
    prior = min(1.0, prior + math.sqrt(prior * (1.0 - prior) / (others.later_tried + _GUESS_WEIGHT)))
    right = [_EXPERIENCE_WEIGHT * prior / rank for rank in range(1, width)]
    tried = [_EXPERIENCE_WEIGHT] * (width - 1)
    # Before anything is known drafts go on half of the time, and there are as many as may be.
    continued, rescued, spread, rounds = 1.0, 2.0, float(width), 1.0
    for past in reversed(history.rounds):
        for rank, was_right in past.later():
            if rank < width:
                tried[rank - 1] += memory
                right[rank - 1] += memory * was_right
        for k, rank in enumerate(past.ranks):
            if rank:
                rescued += memory
                continued += memory * (k + 1 < past.drafted)
        if past.width == width and past.drafted:
            spread += memory * past.spread
            rounds += memory
        memory *= _MEMORY
    missed = math.prod(1.0 - r / t for r, t in zip(right, tried, strict=True))
    return _Siblings(1.0 - missed, continued / rescued, min(float(width), spread / rounds))


def _branched(
    chain: Outlook, chances: Sequence[float], goes_on: Sequence[float], siblings: _Siblings
) -> Outlook:
    """The same of trees: where the first draft is wrong another may be right, and is followed by the
    verifier's own token if by nothing else."""
    tokens = [1.0]
    for length in range(1, len(chances) + 1):
        behind = 1.0
        for k in reversed(range(length)):
            saved = (1.0 - chances[k]) * siblings.right
            after = siblings.continued * behind + 1.0 - siblings.continued
            behind = 1.0 + goes_on[k] * (chances[k] * behind + saved * after)
        tokens.append(behind)
    rows = tuple(siblings.spread * each for each in chain.rows)
    return Outlook(tuple(tokens), rows, (0.0,) * len(chain.guessed), tree=True, says=chain.says)


def measured(rounds: Sequence[Round], most: int) -> Outlook:
    """What rounds came to, all counted alike and nothing assumed: for judging what had been promised."""
    counts = _counts(rounds, most, 1.0, 1.0)
    average = sum(counts.kept) / max(1.0, sum(counts.tried))
    chances = [k / t if t else average for k, t in zip(counts.kept, counts.tried, strict=True)]
    on = sum(counts.given[1:]) / max(1.0, sum(counts.asked[1:]))
    goes_on = [g / a if a else on for g, a in zip(counts.given, counts.asked, strict=True)]
    wrong = sum(counts.given_wrong) / max(1.0, sum(counts.asked_wrong))
    return _outlook(chances, [*goes_on, on], wrong, average)


@dataclass(frozen=True, slots=True)
class _Counts:
    """By position: drafts tried and kept; asked for and given where those before it were kept, and where they
    were given and one of them was wrong. A drafter that looks drafts up says much where it is right.
    """

    tried: list[float]
    kept: list[float]
    asked: list[float]
    given: list[float]
    asked_wrong: list[float]
    given_wrong: list[float]


def _counts(rounds: Sequence[Round], most: int, weight: float, memory: float) -> _Counts:
    """weight: of the last round; memory: of each over that of the one after it.

    A round counts for a range of positions. What it adds is noted where the range begins and taken back where
    it ends; sums from the left are the counts then.
    """
    tried, kept, asked, given, asked_wrong, given_wrong = edges = [[0.0] * (most + 1) for _ in range(6)]
    for past in reversed(rounds):
        drafted, accepted = past.drafted, past.accepted
        # Positions whose predecessors were accepted.
        reached = min(most, accepted + 1)
        end = min(reached, drafted)
        tried[0] += weight
        tried[end] -= weight
        if past.ranks:
            for k in range(end):
                if past.first_kept(k):
                    kept[k] += weight
                    kept[k + 1] -= weight
        else:
            kept[0] += weight
            kept[min(end, accepted)] -= weight
        if past.whole:
            end = min(most, past.planned, drafted + 1)
            right = min(end, reached)
            asked[0] += weight
            asked[right] -= weight
            given[0] += weight
            given[min(right, drafted)] -= weight
            if right < end:
                asked_wrong[right] += weight
                asked_wrong[end] -= weight
                given_wrong[right] += weight
                given_wrong[min(end, drafted)] -= weight
        weight *= memory
    # Rounding must not leave less than nothing.
    return _Counts(*([max(0.0, each) for each in accumulate(edge[:most])] for edge in edges))


def _outlook(chances: Sequence[float], goes_on: Sequence[float], wrong: float, average: float) -> Outlook:
    """chances: of each position, if those before it are accepted; goes_on: that there is a draft at it, or at
    the one after the last, if those before it are; wrong: if one of these is not; average: chance of a
    position beyond the last."""
    most = len(chances)
    tokens, rows, guessed = [1.0], [0.0], [0.0]
    accepted = drafted = 1.0
    for k in range(most):
        drafted = accepted * goes_on[k] + (drafted - accepted) * wrong
        accepted *= goes_on[k] * chances[k]
        tokens.append(tokens[-1] + accepted)
        rows.append(rows[-1] + drafted)
        guessed.append(accepted * goes_on[k + 1] * (chances[k + 1] if k + 1 < most else average))
    return Outlook(tuple(tokens), tuple(rows), tuple(guessed), says=goes_on[0])
