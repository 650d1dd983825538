"""An answer's events from the engine's thread to the replica's loop, a few commits at a time: a message costs
the cluster more than a client gains, and waking the loop for each commit costs the engine's steps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from cluster.speculation.request import Committed, GenerationEvent


class Outbox:
    """Events of one answer. Made in the loop that they are for; interval: the least seconds between commits
    that are handed on."""

    def __init__(self, interval: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval = interval
        self._events: deque[GenerationEvent] = deque()
        self._woken = asyncio.Event()
        self._idle, self._ended = False, False

    def put(self, event: GenerationEvent) -> None:
        """From any one thread. Raises RuntimeError when the loop has closed."""
        self._events.append(event)
        self._ended = not isinstance(event, Committed)
        # Whoever is not idle looks again after the interval, without being woken.
        if self._idle or self._ended:
            self._idle = False
            self._loop.call_soon_threadsafe(self._woken.set)

    async def paced(self) -> AsyncIterator[tuple[GenerationEvent, ...]]:
        """Hands commits on at most once in the interval, joined; the first, and those before an event that
        ends the answer, at once and with it. Ends with that event.
        """
        due = self._loop.time()
        while True:
            await self._something()
            await self._end(due)
            commits: list[Committed] = []
            end: GenerationEvent | None = None
            while self._events and end is None:
                event = self._events.popleft()
                if isinstance(event, Committed):
                    commits.append(event)
                else:
                    end = event
            together: list[GenerationEvent] = []
            if len(commits) > 1 and not commits[-1].token_ids:
                # Text without tokens counts with the end alone (text.py), and must be told apart.
                together.append(_joined(commits[:-1]))
                commits = commits[-1:]
            if commits:
                together.append(_joined(commits))
            if end is not None:
                yield (*together, end)
                return
            yield tuple(together)
            due = self._loop.time() + self._interval

    async def _something(self) -> None:
        """Until there is an event."""
        while True:
            self._woken.clear()
            self._idle = True
            # An event that came before this was seen by nobody.
            if self._events:
                self._idle = False
                return
            await self._woken.wait()

    async def _end(self, due: float) -> None:
        """Until the answer has ended, and no longer than to `due`."""
        if self._ended or self._loop.time() >= due:
            return
        try:
            async with asyncio.timeout_at(due):
                while not self._ended:
                    await self._woken.wait()
                    self._woken.clear()
        except TimeoutError:
            pass


def _joined(commits: Sequence[Committed]) -> Committed:
    return Committed(
        "".join(commit.text for commit in commits),
        tuple(token for commit in commits for token in commit.token_ids),
        tuple(logprob for commit in commits for logprob in commit.logprobs),
        next((commit.so_far for commit in reversed(commits) if commit.so_far is not None), None),
    )
