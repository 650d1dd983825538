"""How much a drafter has to do: blocks that are wanted at a time."""

from __future__ import annotations

import time


class Load:
    """On one event loop. Blocks ahead do not count: they are drafted where nothing is wanted."""

    def __init__(self) -> None:
        self.wanted = 0
        self._area = 0.0
        self._since = self._changed = time.monotonic()

    def add(self, blocks: int) -> None:
        """So many more are wanted; fewer where it is negative."""
        now = time.monotonic()
        self._area += self.wanted * (now - self._changed)
        self._changed = now
        self.wanted += blocks

    def average(self) -> float:
        """Of the time since it was asked last."""
        self.add(0)
        elapsed = self._changed - self._since
        average = self._area / elapsed if elapsed > 0 else float(self.wanted)
        self._area, self._since = 0.0, self._changed
        return average
