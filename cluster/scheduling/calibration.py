"""From a drafter's own confidence to a chance of acceptance, counted over rounds that are over."""

from __future__ import annotations

from dataclasses import dataclass

BINS = 8
# Rounds' worth of belief in the confidence itself.
_WEIGHT = 8.0


def bin_of(max_q: float) -> int:
    """The bin of a statistic in [0, 1]."""
    return min(BINS - 1, int(max_q * BINS))


@dataclass(frozen=True, slots=True)
class Calibration:
    """By bins of max q. tried: positions whose predecessors were accepted; accepted: of these.

    At temperature 1 a draft with max q of 0.2 may well be accepted nine times in ten. Without counts the
    chance is max q itself.
    """

    tried: tuple[float, ...] = (0.0,) * BINS
    accepted: tuple[float, ...] = (0.0,) * BINS

    def chance(self, max_q: float) -> float:
        """Of acceptance, given that all before it were accepted; in [0, 1]."""
        which = bin_of(max_q)
        return (self.accepted[which] + _WEIGHT * max_q) / (self.tried[which] + _WEIGHT)
