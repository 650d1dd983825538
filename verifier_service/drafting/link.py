"""Keeps one stream to one drafter replica up: connects, waits longer and longer, and for a while leaves alone
a replica that fails again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

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
from verifier_service.drafting.resolver import Address

_log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
# A refusal is a matter of configuration; only another replica, or a new start, changes it.
_REFUSED_WAIT_S = 10.0


class Link:
    """Lives on one event loop. numbers: of connections, the same for all links of a verifier; traffic: counts
    bytes; receive: gets every message; lost: told when a stream is over, before `connection` is None again.

    state: "connecting", "connected", "resting: …" or "refused: …"; rests: times that the replica was left
    alone because it failed again and again; sequences: that draft here; others: those of other verifiers, as
    last heard; leaving: nothing more is to be asked of it, and once nothing is under way its stream is over.
    """

    def __init__(
        self,
        address: Address,
        hello: HelloInfo,
        channel: Channel,
        numbers: Iterator[int],
        traffic: Counter[str],
        receive: Callable[[Link, drafting_pb2.DrafterMessage], None],
        lost: Callable[[Link, Fallback, str], None],
    ) -> None:
        self.address = address
        self._hello = hello
        self._channel = channel
        self._numbers = numbers
        self._traffic = traffic
        self._receive = receive
        self._lost = lost
        self._breaker = Breaker()
        self._reading: asyncio.Future[None] | None = None
        # Plans: the newest, and the newest when a failure was last counted.
        self._newest = self._counted = 0
        self.connection: Connection | None = None
        self.state = "connecting"
        self.rests = self.sequences = self.others = 0
        self.leaving = False

    @property
    def usable(self) -> bool:
        """Whether blocks may be asked for here."""
        return self.connection is not None and not self.leaving

    @property
    def load(self) -> int:
        """Sequences of all verifiers, as far as known."""
        return self.sequences + self.others

    def asked(self, plan_id: int) -> None:
        """A plan goes to the replica."""
        self._newest = plan_id

    def answered(self) -> None:
        """The replica sent a block that could be used."""
        self._breaker.answered()

    def failed(self, plan_id: int) -> None:
        """The replica was late, wrong, or reported a fault. At last its stream is ended. Tickets that were
        under way together fail together, and count as one."""
        if plan_id <= self._counted:
            return
        self._counted = self._newest
        if self.connection is not None and self._breaker.failed(time.monotonic()):
            self.rests += 1
            if self._reading is not None:
                self._reading.cancel()

    async def run(self) -> None:
        """Until it is cancelled."""
        wait = _FIRST_WAIT_S
        while True:
            longest, name = _LONGEST_WAIT_S, self.address.replica
            connected = False
            try:
                rest = self._breaker.rests(time.monotonic())
                if rest:
                    self.state = f"resting: {name} failed again and again"
                    await asyncio.sleep(rest)
                connected = await self._converse()
            except RefusedError as refusal:
                longest = _REFUSED_WAIT_S
                state = f"refused: {refusal}"
                if state != self.state:
                    _log.error("the drafter %s refused this verifier: %s", name, refusal)
                self.state = state
            except ConnectionLostError as loss:
                self.state = "connecting"
                _log.debug("no stream to the drafter %s: %s", name, loss)
            except Exception:
                self.state = "connecting"
                _log.exception("the stream to the drafter %s failed", name)
            if connected:
                wait = _FIRST_WAIT_S
            await asyncio.sleep(min(wait, longest))
            wait = min(2 * wait, longest)

    async def _converse(self) -> bool:
        """Until a stream that could be had is over. Raises ConnectionLostError and RefusedError where none
        could."""
        address, number = self.address.address, next(self._numbers)
        async with connect(address, self._hello, number, self._channel, self._traffic) as connection:
            self.connection, self.state = connection, "connected"
            _log.info("drafting by %s", connection.drafter)
            fallback, detail = Fallback.STREAM_RESET, "the stream to the drafter broke"
            try:
                await self._read(connection)
            except ConnectionLostError as loss:
                if not loss.broke:
                    fallback, detail = Fallback.DRAFTER_FAULT, f"the stream to the drafter failed: {loss}"
                self.state = "connecting"
                level = logging.DEBUG if self.leaving else logging.WARNING
                _log.log(level, "the stream to the drafter %s is over: %s", self.address.replica, loss)
            except Exception as error:
                fallback, detail = Fallback.DRAFTER_FAULT, f"the stream to the drafter failed: {error}"
                raise
            finally:
                self._lost(self, fallback, detail)
                self.connection = None
        return True

    async def _read(self, connection: Connection) -> None:
        self._reading = asyncio.ensure_future(connection.run(lambda message: self._receive(self, message)))
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
