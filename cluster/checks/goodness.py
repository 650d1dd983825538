"""Goodness of fit of sampled tokens: bins, χ² and Holm's correction. Needs scipy, as the tests do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chisquare
from torch import Tensor

# A bin with fewer expected draws is pooled, so that χ² has its limiting law.
LEAST_EXPECTED = 5.0

# What everything too rare for a bin of its own is counted as.
REST = "rest"


@dataclass(frozen=True, slots=True)
class Fit:
    """bins: how many there were; tv: between the bins' shares and the law's, sampling error included."""

    draws: int
    bins: int
    chi2: float
    p_value: float
    tv: float


def binned(law: Mapping[int, Tensor], draws: int) -> dict[Hashable, float]:
    """The law of two tokens on bins that expect at least `LEAST_EXPECTED` of the draws.

    law: first token -> probabilities [V] of the pairs that begin with it, which may sum to less than 1 over
    all: the first tokens left out are the rest. A rare pair is pooled with those of the same first token,
    (a, REST), and these with everything else that is rare.
    """
    bins: dict[Hashable, float] = {}
    for first, row in law.items():
        often = (row * draws >= LEAST_EXPECTED).nonzero()[:, 0]
        single = row[often]
        bins |= {(first, b): p for b, p in zip(often.tolist(), single.tolist(), strict=True)}
        others = float(row.sum() - single.sum())
        if draws * others >= LEAST_EXPECTED:
            bins[first, REST] = others
    rest = 1.0 - sum(bins.values())
    while draws * rest < LEAST_EXPECTED:
        rest += bins.pop(min(bins, key=lambda each: bins[each]))
    return bins | {REST: rest}


def fit(pairs: Sequence[tuple[int, int | None]], law: Mapping[int, Tensor]) -> Fit:
    """χ² of pairs against their law on `binned` bins, the last of them the rest.

    A second token of None stands for one that need not be known, its first being rare.
    """
    bins = binned(law, len(pairs))
    seen: Counter[Hashable] = Counter()
    for pair, count in Counter(pairs).items():
        within = next((each for each in (pair, (pair[0], REST)) if each in bins), REST)
        seen[within] += count
    observed = np.array([seen[each] for each in bins], dtype=np.float64)
    expected = np.array(list(bins.values())) * len(pairs)
    test = chisquare(observed, expected)
    tv = 0.5 * float(np.abs(observed - expected).sum()) / len(pairs)
    return Fit(len(pairs), len(bins), float(test.statistic), float(test.pvalue), tv)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: rejecting those below α keeps the chance of any false rejection at α.

    Holm (1979), Scandinavian Journal of Statistics 6, 65-70.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
