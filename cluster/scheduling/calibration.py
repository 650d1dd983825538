"""From a drafter's own confidence to a chance of acceptance, counted over rounds that are over."""

from __future__ import annotations

from dataclasses import dataclass

BINS = 8
# Rounds' worth of belief in the confidence itself.
_WEIGHT = 8.0
_LATER_GUESS = 0.1


def bin_of(max_q: float) -> int:
    """The bin of a statistic in [0, 1]."""
    return min(BINS - 1, int(max_q * BINS))


@dataclass(frozen=True, slots=True)
class Calibration:
    """By bins of max q. tried: positions whose predecessors were accepted; accepted: of these, by their first
    draft. later_tried, later_right: in trees, siblings behind the first where those before were wrong, and
    of these the right ones, whatever max q.

    At temperature 1 a draft with max q of 0.2 may well be accepted nine times in ten. Without counts the
    chance is max q itself.
    """

    tried: tuple[float, ...] = (0.0,) * BINS
    accepted: tuple[float, ...] = (0.0,) * BINS
    later_tried: float = 0.0
    later_right: float = 0.0

    def chance(self, max_q: float) -> float:
        """Of acceptance, given that all before it were accepted; in [0, 1]."""
        which = bin_of(max_q)
        return (self.accepted[which] + _WEIGHT * max_q) / (self.tried[which] + _WEIGHT)

    @property
    def later(self) -> float:
        """Of a sibling behind the first, given that those before it were wrong."""
        return (self.later_right + _WEIGHT * _LATER_GUESS) / (self.later_tried + _WEIGHT)


class Reach:
    """The chances that drafts of one block are accepted together with all that they follow, one draft after
    the other in the block's order."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._drafts: list[float] = []
        # Behind each draft, -1 for the prefix: that none of its children so far is right.
        self._left: dict[int, float] = {}

    def add(self, max_q: float, parent: int) -> float:
        """The chance of the next draft; parent: which it follows, -1 for none."""
        here = 1.0 if parent < 0 else self._drafts[parent]
        left = self._left.get(parent)
        chance = here * self._calibration.chance(max_q) if left is None else left * self._calibration.later
        self._left[parent] = (here if left is None else left) - chance
        self._drafts.append(chance)
        return chance
