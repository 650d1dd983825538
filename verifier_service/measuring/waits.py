"""What blocks of a drafter are waited for, by their length."""

from __future__ import annotations

# A new measurement's share of a mean; what is known of other lengths fades by so much meanwhile.
_SHARE, _FADES = 0.1, 0.01
# How strongly a block of no drafts, which takes no time, stands against those that were measured: it decides
# while all of these were of one length.
_NOTHING = 0.1


class Wait:
    """Of one drafter. What comes besides drafting is a mean over all blocks. Drafting is a line through the
    means of each length: some drafters take time for every token, others as long for one as for many, and
    that decides how much is drafted."""

    def __init__(self) -> None:
        self._count, self._besides = 0, 0.0
        # By length: mean seconds of drafting, and how many measurements these stand for.
        self._drafting: dict[int, tuple[float, float]] = {}
        self._line: tuple[float, float] | None = (0.0, 0.0)

    def add(self, length: int, seconds: float, drafting: float) -> None:
        """A block of `length` tokens, from 1, was there after `seconds`, of which its drafter took some."""
        drafting = min(drafting, seconds)
        # The first ones may have waited for a drafter that was starting: they count no more than later ones.
        self._count += 1
        self._besides += max(_SHARE, 1.0 / self._count) * (seconds - drafting - self._besides)
        for other, (mean, count) in self._drafting.items():
            self._drafting[other] = mean, count * (1.0 - _FADES)
        mean, count = self._drafting.get(length, (0.0, 0.0))
        count = min(count + 1.0, 1.0 / _SHARE)
        self._drafting[length] = mean + (drafting - mean) / count, count
        self._line = None

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of the wait however short a block is, and for each of its tokens."""
        if self._line is None:
            start, slope = _line(self._drafting)
            self._line = self._besides + start, slope
        return self._line


def _line(points: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Start and slope, neither below 0, of the line nearest to means by length, with their weights."""
    weight, lengths, seconds = _NOTHING, 0.0, 0.0
    for length, (mean, count) in points.items():
        weight += count
        lengths += count * length
        seconds += count * mean
    middle, height = lengths / weight, seconds / weight
    spread, along = _NOTHING * middle * middle, _NOTHING * middle * height
    for length, (mean, count) in points.items():
        spread += count * (length - middle) ** 2
        along += count * (length - middle) * (mean - height)
    slope = min(max(0.0, along / spread), height / middle)
    return height - slope * middle, slope
