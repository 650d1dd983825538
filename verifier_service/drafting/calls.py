"""Calls that other threads leave to an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Calls:
    """Run on the loop, in order. Waking it takes far longer than most calls: it is woken once for all that
    are left until it runs them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._woken = False

    def leave(self, function: Callable[..., None], *arguments: object) -> bool:
        """From any thread; returns at once. False if the loop is closed."""
        if self._loop.is_closed():
            return False
        self._left.append((function, arguments))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                return False
        return True

    def _run(self) -> None:
        # What is left from here on wakes the loop again, or is found below.
        self._woken = False
        while self._left:
            function, arguments = self._left.popleft()
            try:
                function(*arguments)
            except Exception:
                _log.exception("a call could not be made")
