"""Bets whose winnings are evidence: test martingales with p-values that hold at any time.

Under the hypothesis each observation has mean 0 given the past and lies in [-1, 1]. A bettor who stakes a
share λ of its wealth on each has the wealth Π(1 + λ x), a martingale; so has a mixture of bettors, and by
Ville's inequality the wealth ever exceeds 1/a with probability at most a. Both signs are bet on, since common
faults push ranks either way.

Bettors that were wrong for long are poor, and a fault that begins late would need as long to show. So betting
begins anew every EPOCH observations, and the j-th epoch tests at a level of 1 / (j (j + 1)) of the whole:
these shares add up to 1, so the smallest corrected p-value holds at any time as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

STAKES = tuple(sign * size for size in (0.1, 0.2, 0.4, 0.8) for sign in (1, -1))
EPOCH = 50_000


class Martingale:
    """The mixture over STAKES; count: observations so far."""

    __slots__ = ("_epoch", "_highest", "_logs", "_stakes", "count", "log_p_value")

    def __init__(self, stakes: tuple[float, ...] = STAKES) -> None:
        self._stakes = stakes
        self.count = 0
        # Natural logarithm of the p-value: the value itself runs out of floating point.
        self.log_p_value = 0.0
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._epoch += 1
        self._logs = [0.0] * len(self._stakes)
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

    def observe(self, values: Iterable[float]) -> None:
        """values: each in [-1, 1], of mean 0 given all before it if all is well."""
        for x in values:
            if self.count and self.count % EPOCH == 0:
                self._begin()
            self.count += 1
            for index, stake in enumerate(self._stakes):
                self._logs[index] += math.log1p(stake * x)
            wealth = self.log_wealth
            if wealth > self._highest:
                self._highest = wealth
                corrected = math.log(self._epoch * (self._epoch + 1)) - wealth
                self.log_p_value = min(self.log_p_value, corrected)
