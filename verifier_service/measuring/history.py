"""What rounds gave and took of late: a short history for people, and what drafts must give to be worth it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

# Seconds of a step of the history, and how many are kept: an hour.
STEP_S = 30
_STEPS = 120
# How much a new round counts in a mean.
_WEIGHT = 0.02


class History:
    """Rounds and emitted tokens by domain, in steps of time. One thread adds, any reads."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, dict[str, tuple[int, int]]]] = deque(maxlen=_STEPS)

    def add(self, domain: str, emitted: int) -> None:
        step = int(time.time()) // STEP_S
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, {}))
        sums = self._steps[-1][1]
        rounds, tokens = sums.get(domain, (0, 0))
        sums[domain] = (rounds + 1, tokens + emitted)

    def state(self) -> list[dict[str, Any]]:
        """time: the beginning of a step in seconds since the epoch; domains: [rounds, emitted] of each."""
        return [
            {"time": step * STEP_S, "domains": {domain: list(each) for domain, each in list(sums.items())}}
            for step, sums in list(self._steps)
        ]


class RoundTimes:
    """Running means of the time that rounds take, with drafts and without."""

    def __init__(self) -> None:
        self._means: dict[bool, float] = {}

    def add(self, drafted: bool, seconds: float) -> None:
        before = self._means.get(drafted, seconds)
        self._means[drafted] = before + _WEIGHT * (seconds - before)

    @property
    def break_even(self) -> float | None:
        """Tokens that a drafted round must give so that drafting is no loss; None until both were seen."""
        if len(self._means) < 2 or not self._means[False]:
            return None
        return self._means[True] / self._means[False]
