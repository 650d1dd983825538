"""Keeps one stream to some drafter replica up: finds, connects, waits longer and longer, and leaves a replica
that fails again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from cluster.channel.spec import Channel
from truedraft.v1 import drafting_pb2
from verifier_service.drafting.breaker import Breaker
from verifier_service.drafting.connection import (
    Connection,
    ConnectionLostError,
    HelloInfo,
    RefusedError,
    connect,
)
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.resolver import Resolver

_log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
# A refusal is a matter of configuration; only another replica, or a new start, changes it.
_REFUSED_WAIT_S = 10.0

Lost = Callable[[Fallback, str], None]


class Upkeep:
    """Lives on one event loop. traffic: counts bytes; receive: gets every response; lost: told when a stream
    is over, before `connection` is None again.

    state: "connecting", "connected", "resting: …", "closed" or "refused: …"; rests: times that a replica was
    left alone because it failed again and again.
    """

    def __init__(
        self,
        resolver: Resolver,
        hello: HelloInfo,
        channel: Channel,
        traffic: Counter[str],
        receive: Callable[[drafting_pb2.DraftResponse], None],
        lost: Lost,
    ) -> None:
        self._resolver = resolver
        self._hello = hello
        self._channel = channel
        self._traffic = traffic
        self._receive = receive
        self._lost = lost
        self._connections = 0
        self._breakers: dict[str, Breaker] = {}
        self._replica = ""
        self._reading: asyncio.Future[None] | None = None
        self.connection: Connection | None = None
        self.state = "connecting"
        self.rests = 0

    def answered(self) -> None:
        """The replica sent a block that could be used."""
        self._breaker.answered()

    def failed(self) -> None:
        """The replica was late, wrong, or reported a fault. At last its stream is ended."""
        if self.connection is not None and self._breaker.failed(time.monotonic()):
            self.rests += 1
            if self._reading is not None:
                self._reading.cancel()

    @property
    def _breaker(self) -> Breaker:
        return self._breakers.setdefault(self._replica, Breaker())

    async def run(self) -> None:
        """Until it is cancelled."""
        wait, avoid = _FIRST_WAIT_S, ""
        while True:
            before, longest = self._connections, _LONGEST_WAIT_S
            try:
                found = await self._resolver.resolve(avoid)
                if found is None:
                    self.state = "connecting"
                else:
                    avoid = self._replica = found.replica
                    if self._breaker.rests(time.monotonic()):
                        self.state = f"resting: {avoid} failed again and again"
                    else:
                        await self._converse(found.address)
            except RefusedError as refusal:
                longest = _REFUSED_WAIT_S
                state = f"refused: {refusal}"
                if state != self.state:
                    _log.error("the drafter %s refused this verifier: %s", avoid, refusal)
                self.state = state
            except ConnectionLostError as loss:
                self.state = "connecting"
                level = logging.WARNING if self._connections != before else logging.DEBUG
                _log.log(level, "no stream to the drafter %s: %s", avoid, loss)
            except Exception:
                self.state = "connecting"
                _log.exception("the stream to the drafter %s failed", avoid)
            if self._connections != before:
                wait = _FIRST_WAIT_S
            await asyncio.sleep(min(wait, longest))
            wait = min(2 * wait, longest)

    async def close(self) -> None:
        """After `run` was cancelled."""
        self.state = "closed"
        await self._resolver.aclose()

    async def _converse(self, address: str) -> None:
        number = self._connections + 1
        async with connect(address, self._hello, number, self._channel, self._traffic) as connection:
            self._connections = connection.number
            self.connection, self.state = connection, "connected"
            _log.info("drafting by %s", connection.drafter)
            fallback, detail = Fallback.STREAM_RESET, "the stream to the drafter broke"
            try:
                await self._read(connection)
            except Exception as error:
                if not (isinstance(error, ConnectionLostError) and error.broke):
                    fallback, detail = Fallback.DRAFTER_FAULT, f"the stream to the drafter failed: {error}"
                raise
            finally:
                self._lost(fallback, detail)
                self.connection = None

    async def _read(self, connection: Connection) -> None:
        self._reading = asyncio.ensure_future(connection.run(self._receive))
        try:
            await self._reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # What is under way is given up because of how this drafter answers.
            raise ConnectionLostError("it failed again and again and is left alone", broke=False) from None
        finally:
            self._reading = None
