"""Bets whose winnings are evidence: test martingales with p-values that hold at any time.

Under the hypothesis nothing that is bet on can be foreseen: given the past, a bettor's wealth is multiplied
by a factor of mean 1. So it is a martingale, a mixture of bettors is one, and by Ville's inequality the
wealth ever exceeds 1/a with probability at most a. Both signs are bet on, since common faults push ranks and
acceptance either way.

Bettors that were wrong for long are poor, and a fault that begins late would need as long to show. So betting
begins anew every EPOCH observations, and the j-th epoch tests at a level of 1 / (j (j + 1)) of the whole:
these shares add up to 1, so the smallest corrected p-value holds at any time as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

STAKES = tuple(sign * size for size in (0.1, 0.2, 0.4, 0.8) for sign in (1, -1))
EPOCH = 50_000
# Of the drafts that are rejected, a fault is taken to spare at most half, or to add at most as many again.
_FEWER, _MORE = 0.5, 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision:
    """On one draft, or a block's first drafts. chance: the probability that they are kept, given the past."""

    kept: bool
    chance: float


def on_ranks(stake: float, x: float) -> float:
    """What a stake becomes; x: in [-1, 1], of mean 0."""
    return 1.0 + stake * x


def on_counts(stake: float, decision: Decision) -> float:
    """The same share on every decision."""
    return 1.0 + stake * (float(decision.kept) - decision.chance)


def on_lenience(stake: float, decision: Decision) -> float:
    """The likelihood ratio of a verifier that keeps 1 + stake times as many drafts.

    Much is at stake where the law leaves little to chance: there a few drafts tell a lenient verifier.
    """
    chance, rest = decision.chance, 1.0 - decision.chance
    more = max(-_MORE * rest, min(stake * chance, _FEWER * rest))
    if more == 0.0:
        return 1.0
    return 1.0 + (more / chance if decision.kept else -more / rest)


RANKS = tuple(partial(on_ranks, stake) for stake in STAKES)
DECISIONS = tuple(partial(bet, stake) for bet in (on_counts, on_lenience) for stake in STAKES)


class Martingale(Generic[T]):
    """The mixture of bettors, each from an observation to the factor of its wealth; count: observations."""

    __slots__ = ("_bettors", "_epoch", "_highest", "_logs", "count", "log_p_value")

    def __init__(self, bettors: Sequence[Callable[[T], float]]) -> None:
        self._bettors = bettors
        self.count = 0
        # Natural logarithm of the p-value: the value itself runs out of floating point.
        self.log_p_value = 0.0
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._epoch += 1
        self._logs = [0.0] * len(self._bettors)
        self._highest = 0.0

    @property
    def p_value(self) -> float:
        """The probability, at most, of evidence as strong as has been seen at any time, were all well."""
        return math.exp(self.log_p_value)

    @property
    def log_wealth(self) -> float:
        """Of the present epoch."""
        top = max(self._logs)
        return top + math.log(math.fsum(math.exp(each - top) for each in self._logs) / len(self._logs))

    def observe(self, observations: Iterable[T]) -> None:
        """Each such that, if all is well, every bettor's factor has mean 1 given all before it."""
        for observation in observations:
            if self.count and self.count % EPOCH == 0:
                self._begin()
            self.count += 1
            for index, bettor in enumerate(self._bettors):
                self._logs[index] += math.log(bettor(observation))
            wealth = self.log_wealth
            if wealth > self._highest:
                self._highest = wealth
                corrected = math.log(self._epoch * (self._epoch + 1)) - wealth
                self.log_p_value = min(self.log_p_value, corrected)
