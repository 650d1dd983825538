"""What asking for a block takes from the step: messages, event loops and a drafter on the same machine all
need processor time, of which the forward then has less.

Measured by neighbours: two steps in a row with like rows, for which different numbers of blocks were asked.
Their difference depends neither on the machine's hour nor on what the profile says of so many rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.scheduling import VerifyCost

# Comparisons that are remembered, and that say something at least.
_REMEMBERED, _LEAST = 64, 4
# Rows of neighbours may differ by this share.
_ALIKE = 1.0 / 8.0
# After so many steps without a block of a pool the older half of its comparisons is forgotten: what nobody
# asks for is not compared either, and a price that is wrong by now would stand for good.
_FORGETS_AFTER = 96
# How much the latest block counts in the share of those that are heard of.
_LATEST = 1.0 / 32.0
# Standard error of a median, in median absolute deviations over the root of the count.
_ERROR = 1.2533 * 1.4826


@dataclass(frozen=True, slots=True)
class Step:
    """A step without prompts. sequences: in it; rows, keys: as in VerifyCost; seconds: since the end of the
    step before, waits left out; asked: blocks that a drafter hears of since then, by pool; clear: none of an
    earlier step was under way."""

    sequences: int
    rows: int
    keys: int
    seconds: float
    asked: Mapping[str, int] = field(default_factory=dict)
    clear: bool = True


class Prices:
    """By drafter pool. The engine's thread alone."""

    def __init__(self) -> None:
        self._before: tuple[Step, float] | None = None
        self._found: dict[str, deque[tuple[float, int]]] = {}
        self._prices: dict[str, float] = {}
        # Of blocks that were asked for, the share of which a drafter heard.
        self._heard: dict[str, float] = {}
        # Steps since a block was last asked for.
        self._unasked: dict[str, int] = {}

    def of(self, pool: str) -> float:
        """Seconds for each block that is asked for, whether or not a drafter hears of it: what is sure of
        them, so that chance is no price."""
        return self._prices.get(pool, 0.0) * self._heard.get(pool, 1.0)

    def asked(self, pool: str, heard: bool) -> None:
        """A block was asked for; heard: a message told a drafter, which is what costs."""
        before = self._heard.get(pool, 1.0)
        self._heard[pool] = before + _LATEST * (heard - before)

    def compared(self, pool: str) -> int:
        """Comparisons that the price rests on."""
        return len(self._found.get(pool, ()))

    def asking(self, asked: Mapping[str, int]) -> float:
        """Seconds that these blocks, of which drafters hear, take from the step."""
        return sum(count * self._prices.get(pool, 0.0) for pool, count in asked.items())

    def interrupted(self) -> None:
        """A step with prompts, or none: the next has no neighbour."""
        self._before = None

    def stepped(self, step: Step, cost: VerifyCost) -> None:
        """cost: for the difference that a few rows and keys make."""
        self._forget(step.asked)
        excess = step.seconds - cost.of(step.rows, step.keys)
        before, self._before = self._before, (step, excess) if step.clear else None
        if before is None or not step.clear:
            return
        last, last_excess = before
        if step.sequences != last.sequences or abs(step.rows - last.rows) > _ALIKE * last.rows:
            return
        pools = {*step.asked, *last.asked}
        more = {pool: step.asked.get(pool, 0) - last.asked.get(pool, 0) for pool in pools}
        differing = [pool for pool in pools if more[pool]]
        if len(differing) == 1:
            [pool] = differing
            found = self._found.setdefault(pool, deque(maxlen=_REMEMBERED))
            found.append(((excess - last_excess) / more[pool], abs(more[pool])))
            self._prices[pool] = _sure(found)

    def _forget(self, asked: Mapping[str, int]) -> None:
        for pool, found in self._found.items():
            since = self._unasked[pool] = 0 if asked.get(pool) else self._unasked.get(pool, 0) + 1
            if since and since % _FORGETS_AFTER == 0:
                for _ in range((len(found) + 1) // 2):
                    found.popleft()
                self._prices[pool] = _sure(found)


def _sure(found: Iterable[tuple[float, int]]) -> float:
    """Of values with weights: the median less its standard error, at least 0; 0 while there are few."""
    values = sorted(found)
    if len(values) < _LEAST:
        return 0.0
    total = sum(weight for _, weight in values)
    middle = _median(values, total)
    deviation = _median(sorted((abs(value - middle), weight) for value, weight in values), total)
    count = total**2 / sum(weight**2 for _, weight in values)
    return max(0.0, middle - _ERROR * deviation / math.sqrt(count))


def _median(values: list[tuple[float, int]], total: int) -> float:
    """Of sorted values with weights; total: of these."""
    below = 0
    for value, weight in values:
        below += weight
        if 2 * below >= total:
            return value
    return values[-1][0]
