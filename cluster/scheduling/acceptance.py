"""What a block of k drafts may be expected to bring, estimated from rounds that are over."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.scheduling.history import History

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
    tried, kept = [0.0] * most, [0.0] * most
    asked, given = [0.0] * most, [0.0] * most
    weight = _MEMORY**history.idle
    for past in reversed(history.rounds):
        for k in range(min(most, past.accepted + 1, past.drafted)):
            tried[k] += weight
            kept[k] += weight * (k < past.accepted)
        if past.whole:
            for k in range(min(most, past.planned, past.drafted + 1)):
                asked[k] += weight
                given[k] += weight * (k < past.drafted)
        weight *= _MEMORY
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
    tokens, rows, guessed = [1.0], [0.0], [0.0]
    accepted = drafted = 1.0
    for k in range(most):
        says = (given[0] + 1.0) / (asked[0] + 1.0) if k == 0 else goes_on
        drafted *= says
        accepted *= says * chances[k]
        tokens.append(tokens[-1] + accepted)
        rows.append(rows[-1] + drafted)
        guessed.append(accepted * goes_on * (chances[k + 1] if k + 1 < most else average))
    return Outlook(tuple(tokens), tuple(rows), tuple(guessed))
