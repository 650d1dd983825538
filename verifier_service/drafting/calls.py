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
        self._woken = self._held = False

    def hold(self) -> None:
        """Calls that are left from now on are made with `send`: the loop runs as soon as it is woken, and
        would find the first of them alone."""
        self._held = True

    def send(self) -> None:
        """Wakes the loop for those that are held; those that are left from now on wake it."""
        self._held = False
        if self._left:
            self._wake()

    def leave(self, function: Callable[..., None], *arguments: object) -> bool:
        """From any thread; returns at once. False if the loop is closed."""
        if self._loop.is_closed():
            return False
        self._left.append((function, arguments))
        return self._held or self._wake()

    def _wake(self) -> bool:
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
