"""Drafters in processes of their own, and an event loop in a thread for the way to them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from opentelemetry.trace import NoOpTracer

from drafter_service.spec import DrafterSpec

T = TypeVar("T")

_START_S = 120.0


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it there and waits for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_START_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class DrafterProcess:
    """A drafter in a process of its own, on any free port. Starting takes seconds: the process loads."""

    def __init__(self, spec: DrafterSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_draft, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()
        self._address = ""

    @property
    def ready(self) -> bool:
        """Its address can be had without waiting."""
        return bool(self._address) or self._channel.poll()

    @property
    def address(self) -> str:
        """Waits for it. Raises RuntimeError when the process does not come up."""
        if not self._address:
            try:
                if not self._channel.poll(_START_S):
                    raise EOFError
                self._address = self._channel.recv()
            except EOFError:
                raise RuntimeError("the drafter's process did not start") from None
        return self._address

    def kill(self) -> None:
        """At once; no stream is closed."""
        self._process.kill()
        self._process.join()


def _draft(channel: Connection, spec: DrafterSpec) -> None:
    """The drafter's process: serves until it is killed."""
    from drafter_service.deployment import load
    from drafter_service.server import DraftingServer

    async def serve() -> None:
        loaded = load(spec)
        server = DraftingServer(
            loaded.drafter, loaded.tokenizer_hash, loaded.vocab_size, f"process-{os.getpid()}", NoOpTracer()
        )
        channel.send(await server.start())
        await asyncio.Event().wait()

    asyncio.run(serve())
