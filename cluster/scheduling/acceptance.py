"""What a block of k drafts may be expected to bring, estimated from rounds that are over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.history import History, Round

# A round counts this much less with every later one, so that some twenty rounds decide.
_MEMORY = 0.95
# Before anything is known: worth a try.
_FIRST_GUESS = 0.7
# In positions tried: how strongly the first guess, the experience of others, and a request's average over all
# positions stand against what a request has seen itself.
_GUESS_WEIGHT, _EXPERIENCE_WEIGHT, _POSITION_WEIGHT = 8.0, 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """For blocks of 0, 1, … drafts. tokens: expected to be emitted, the verifier's own included; rows:
    expected to be drafted, since a drafter may have less to say than it is asked for; guessed: the chance
    that all of them are kept and the drafter guesses the verifier's own token as well."""

    tokens: tuple[float, ...]
    rows: tuple[float, ...]
    guessed: tuple[float, ...]


def outlook(history: History, most: int) -> Outlook:
    """Up to `most` drafts.

    Acceptance is estimated for each position from the rounds that reached it, and drawn to the request's
    average, as this is to that of others: a block says little of its far positions.
    """
    tried, kept, asked, given = _counts(history.rounds, most, _MEMORY**history.idle, _MEMORY)
    others = history.experience
    prior = (others.accepted + _GUESS_WEIGHT * _FIRST_GUESS) / (others.tried + _GUESS_WEIGHT)
    # What is not yet known is worth finding out.
    prior = min(1.0, prior + math.sqrt(prior * (1.0 - prior) / (others.tried + _GUESS_WEIGHT)))
    average = (sum(kept) + _EXPERIENCE_WEIGHT * prior) / (sum(tried) + _EXPERIENCE_WEIGHT)
    # Whether a drafter says anything, and whether it goes on, are two things.
    goes_on = (sum(given[1:]) + 1.0) / (sum(asked[1:]) + 1.0)
    chances = [
        (k + _POSITION_WEIGHT * average) / (t + _POSITION_WEIGHT) for k, t in zip(kept, tried, strict=True)
    ]
    says = (given[0] + 1.0) / (asked[0] + 1.0) if most else 1.0
    return _outlook(chances, says, goes_on, average)


def measured(rounds: Sequence[Round], most: int) -> Outlook:
    """What rounds came to, all counted alike and nothing assumed: for judging what had been promised."""
    tried, kept, asked, given = _counts(rounds, most, 1.0, 1.0)
    average = sum(kept) / max(1.0, sum(tried))
    chances = [k / t if t else average for k, t in zip(kept, tried, strict=True)]
    says = given[0] / asked[0] if most and asked[0] else 0.0
    return _outlook(chances, says, sum(given[1:]) / max(1.0, sum(asked[1:])), average)


def _counts(
    rounds: Sequence[Round], most: int, weight: float, memory: float
) -> tuple[list[float], list[float], list[float], list[float]]:
    """By position: drafts tried and kept, asked for and given. weight: of the last round; memory: of each
    over that of the one after it."""
    tried, kept = [0.0] * most, [0.0] * most
    asked, given = [0.0] * most, [0.0] * most
    for past in reversed(rounds):
        for k in range(min(most, past.accepted + 1, past.drafted)):
            tried[k] += weight
            kept[k] += weight * (k < past.accepted)
        if past.whole:
            for k in range(min(most, past.planned, past.drafted + 1)):
                asked[k] += weight
                given[k] += weight * (k < past.drafted)
        weight *= memory
    return tried, kept, asked, given


def _outlook(chances: Sequence[float], says: float, goes_on: float, average: float) -> Outlook:
    """chances: of each position, if those before it are accepted; says, goes_on: that there is a first draft,
    and each other after one; average: chance of a position beyond the last."""
    most = len(chances)
    tokens, rows, guessed = [1.0], [0.0], [0.0]
    accepted = drafted = 1.0
    for k in range(most):
        drafted *= goes_on if k else says
        accepted *= (goes_on if k else says) * chances[k]
        tokens.append(tokens[-1] + accepted)
        rows.append(rows[-1] + drafted)
        guessed.append(accepted * goes_on * (chances[k + 1] if k + 1 < most else average))
    return Outlook(tuple(tokens), tuple(rows), tuple(guessed))
