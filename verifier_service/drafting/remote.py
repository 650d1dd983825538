"""Blocks from a drafter replica over gRPC. Whatever happens to the replica, every ticket is answered
or overtaken: a lost drafter costs rounds without drafts, never a request."""

from __future__ import annotations

import asyncio
from collections import Counter

from torch import Tensor

from cluster.channel.spec import LOOPBACK, Channel
from cluster.speculation.messages import SessionSpec
from verifier_service.drafting.calls import Calls
from verifier_service.drafting.connection import HelloInfo
from verifier_service.drafting.forecasts import Forecasts
from verifier_service.drafting.foresight import Foresight
from verifier_service.drafting.port import Deliver, DraftTicket, Fallback
from verifier_service.drafting.replies import foretold, without_block
from verifier_service.drafting.resolver import Resolver
from verifier_service.drafting.sessions import Sessions

__all__ = ["HelloInfo", "RemoteDrafting"]


class RemoteDrafting:
    """A DraftingPort on streams to all drafter replicas, kept up in the background. A ticket whose block is
    foreseen is answered in the thread that issues it; the others' replies come from the loop.

    loop: where everything but the port's methods runs; it must run while the engine does; channel: the
    certificates. Connecting begins with `connect` and ends with `aclose`.
    dropped: responses that answered nothing that was asked, by what was wrong with them; traffic: bytes
    of messages, "sent" and "received".
    """

    def __init__(
        self,
        resolver: Resolver,
        hello: HelloInfo,
        loop: asyncio.AbstractEventLoop,
        channel: Channel = LOOPBACK,
    ) -> None:
        self._calls = Calls(loop)
        self._reads = hello.features is not None
        self.traffic: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self._forecasts = Forecasts()
        self._foresight = Foresight(self._forecasts)
        self._sessions = Sessions(resolver, hello, channel, self._forecasts, self.traffic, self.dropped)
        self._deliver: Deliver | None = None

    # See DraftingPort.
    apart = True
    at_once = False

    @property
    def ahead(self) -> Counter[str]:
        """Tokens that were drafted ahead and "used", or "wasted"."""
        return self._forecasts.counts

    @property
    def foresees(self) -> bool:
        """See DraftingPort."""
        return self._sessions.links.foresees

    @property
    def reads(self) -> bool:
        """See DraftingPort: its replicas may come and go, so all that can be had."""
        return self._reads

    @property
    def state(self) -> str:
        """Of the streams; see Links."""
        return self._sessions.links.state

    @property
    def moved(self) -> int:
        """Sequences that went on to draft elsewhere while their replica was there."""
        return self._sessions.moved

    def spread(self) -> dict[str, int]:
        """Open sequences by the replica that drafts for them."""
        return self._sessions.links.spread()

    def hold(self) -> None:
        self._calls.hold()

    def send(self) -> None:
        self._calls.send()

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._calls.leave(self._sessions.start, deliver)

    def open(self, spec: SessionSpec) -> None:
        self._foresight.open(spec)
        self._calls.leave(self._sessions.open, spec)

    def feed(self, sequence: int, rows: Tensor) -> None:
        self._calls.leave(self._sessions.feed, sequence, rows)

    def request(self, ticket: DraftTicket) -> bool:
        if self._deliver is None:
            raise ValueError("connect before the first ticket")
        if not ticket.length:
            return self._calls.leave(self._sessions.grant, ticket)
        foreseen = self._foresight.of(ticket)
        told, block = foreseen.told, foreseen.block
        if told is not None and block is not None:
            # At once: a detour over the loop's thread takes longer than an n-gram.
            self._deliver(foretold(ticket, block, told))
        if foreseen.enough:
            return False
        heard = self._calls.leave(self._sessions.request, ticket, foreseen)
        if not heard and block is None:
            self._deliver(without_block(ticket, Fallback.NO_DRAFTER, "the drafting client is closed"))
        return heard

    def close(self, sequence: int, reason: str) -> None:
        self._foresight.close(sequence)
        self._calls.leave(self._sessions.close, sequence, reason)

    async def aclose(self) -> None:
        """Ends the streams; on the loop. Tickets from then on are answered with NO_DRAFTER."""
        await self._sessions.links.aclose()
