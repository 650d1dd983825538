"""What waits to be written to a stream, on either side of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

# Of the messages that are written as one, far below the 4 MiB that gRPC takes.
MOST_BYTES: Final = 256 * 1024


class Outbox(Generic[M]):
    """On one event loop. A stream's write costs far more than a message, so that its writer takes whatever
    waits at once; what comes while it writes goes with the next one, and nothing waits for others."""

    def __init__(self) -> None:
        self._waiting: deque[M] = deque()
        self._filled = asyncio.Event()

    def put(self, message: M) -> None:
        """Returns at once."""
        self._waiting.append(message)
        self._filled.set()

    async def take(self) -> list[M]:
        """Waits for a message; it and those behind it, in order: as many as have MOST_BYTES together, and
        one that is larger alone."""
        await self._filled.wait()
        taken = [self._waiting.popleft()]
        size = taken[0].ByteSize()
        while self._waiting and (size := size + self._waiting[0].ByteSize()) <= MOST_BYTES:
            taken.append(self._waiting.popleft())
        if not self._waiting:
            self._filled.clear()
        return taken
