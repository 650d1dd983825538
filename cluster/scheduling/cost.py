"""What a round costs: seconds of a verify step by rows and context, seconds until a block is there, and what
asking for it takes from the step."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """A step's time where no block is asked for, measured at some numbers of rows and linear between and
    beyond them.

    rows: ascending, from 1; seconds: of a forward of so many rows with little context, and of its verdicts;
    per_key: seconds more for each key that a row attends to; overhead: seconds of a step besides, for
    planning and handing out. Raises ValueError for what is no such measurement.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    per_key: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.rows))
        if not self.rows or len(self.rows) != len(self.seconds) or not ascending or min(self.seconds) <= 0.0:
            raise ValueError("a cost needs ascending rows, and positive seconds for each of them")

    def of(self, rows: float, keys: float = 0.0) -> float:
        """Seconds of a step. rows: at least 1; keys: attended to in all, summed over rows."""
        return self.overhead + self.forward(rows, keys)

    def forward(self, rows: float, keys: float = 0.0) -> float:
        """The same without its overhead."""
        return self._of_rows(rows) + self.per_key * keys

    def _of_rows(self, rows: float) -> float:
        if len(self.rows) == 1 or rows <= self.rows[0]:
            return self.seconds[0]
        # Extrapolated beyond the last interval.
        right = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        share = (rows - self.rows[left]) / (self.rows[right] - self.rows[left])
        return self.seconds[left] + share * (self.seconds[right] - self.seconds[left])


@dataclass(frozen=True, slots=True)
class DraftCost:
    """base: of the wait for a block that nothing hides, seconds however short it is, the round trip included;
    per_token: seconds for each token of it. price: seconds by which a step takes longer for each block that
    was asked for, since messages and a drafter on the same machine take time from what computes; compared:
    how often steps with and without were, None where drafting takes nothing from steps."""

    base: float = 0.0
    per_token: float = 0.0
    price: float = 0.0
    compared: int | None = None

    def of(self, length: int) -> float:
        """Seconds until a block of `length` tokens is there; none where none is asked for."""
        return self.base + self.per_token * length if length else 0.0
