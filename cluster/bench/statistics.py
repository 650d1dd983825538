"""Ratios from interleaved pairs, whether they meet a target, and means with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 10_000
# One at a time, since a sample may be large.
_MEANS = 2_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios with its bootstrap interval of 95 %."""

    median: float
    low: float
    high: float

    def against(self, target: float) -> str:
        """ "met" or "missed" when the whole interval lies on one side of the target, else "not resolved"."""
        if self.low >= target:
            return "met"
        return "missed" if self.high < target else "not resolved"

    def at_most(self, target: float) -> str:
        """The same where less is better."""
        if self.high <= target:
            return "met"
        return "missed" if self.low > target else "not resolved"

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median of numerators over denominators, pair by pair; the interval resamples pairs.

    Seeded, so that the same measurements give the same interval. Raises ValueError for unequal lengths.
    """
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError("a ratio needs as many numerators as denominators, at least one of each")
    ratios = np.asarray(numerators) / np.asarray(denominators)
    draws = np.random.default_rng(0).choice(ratios, size=(_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: Sequence[float]) -> Mean:
    """The mean of independent values; the interval resamples them, seeded. Raises ValueError for none."""
    if not values:
        raise ValueError("a mean needs at least one value")
    sample = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(0)
    means = [float(generator.choice(sample, size=len(sample)).mean()) for _ in range(_MEANS)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Mean(float(sample.mean()), float(low), float(high))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(np.asarray(values)))))
