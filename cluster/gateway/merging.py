"""Several streams of messages as one, in the order in which messages come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Message = TypeVar("Message")


async def merged(streams: Sequence[AsyncGenerator[Message, None]]) -> AsyncGenerator[Message, None]:
    """Ends when all have ended. The first failure, or leaving early, closes all of them."""
    # None: a stream has ended; an exception: it has failed.
    queue: asyncio.Queue[Message | Exception | None] = asyncio.Queue()

    async def consume(stream: AsyncGenerator[Message, None]) -> None:
        try:
            async with aclosing(stream):
                async for message in stream:
                    queue.put_nowait(message)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(consume(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            message = await queue.get()
            if isinstance(message, Exception):
                raise message
            if message is None:
                running -= 1
            else:
                yield message
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
