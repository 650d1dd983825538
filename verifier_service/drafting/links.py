"""A verifier's streams, one to each drafter replica, and which of them a sequence drafts on."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable

from cluster.channel.spec import Channel
from truedraft.v1 import drafting_pb2
from verifier_service.drafting.connection import HelloInfo
from verifier_service.drafting.link import Link
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.resolver import Address, Resolver

# Between two looks for replicas: while there is a stream, and at first and at most while there is none.
_LOOK_S, _FIRST_S, _LONGEST_S = 2.0, 0.1, 1.0
# A replica has too much to do with more sequences above the average than this, and than this share of it.
_EXCESS, _EXCESS_SHARE = 1.0, 0.25


class Links:
    """Lives on one event loop. receive, lost: see Link; looked: called after every look, when links are as
    they should be.

    A sequence goes where the fewest of this verifier's are, so that every verifier spreads its own evenly
    without asking the others; between replicas with equally many, where the others have fewer.
    """

    def __init__(
        self,
        resolver: Resolver,
        hello: HelloInfo,
        channel: Channel,
        traffic: Counter[str],
        receive: Callable[[Link, drafting_pb2.DrafterMessage], None],
        lost: Callable[[Link, Fallback, str], None],
        looked: Callable[[], None],
    ) -> None:
        self._resolver = resolver
        self._hello = hello
        self._channel = channel
        self._traffic = traffic
        self._receive = receive
        self._lost = lost
        self._looked = looked
        self._numbers = itertools.count(1)
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def state(self) -> str:
        """That of the link that is best off; "connecting" without any, "closed" at the end."""
        if self._closed:
            return "closed"
        states = [link.state for link in list(self._links) if not link.leaving]
        for first in ("connected", "refused", "resting"):
            for state in states:
                if state.startswith(first):
                    return state
        return "connecting"

    @property
    def foresees(self) -> bool:
        """Whether the replicas tell of every outcome; they all run the same drafter."""
        # Asked from the engine's thread, while links come and go.
        connections = [link.connection for link in list(self._links)]
        return any(connection is not None and connection.foresees for connection in connections)

    @property
    def rests(self) -> int:
        """Times that a replica was left alone, of those there are."""
        return sum(link.rests for link in self._links)

    def spread(self) -> dict[str, int]:
        """Sequences of this verifier by the replica that drafts for them."""
        return {link.address.replica: link.sequences for link in self._links if link.usable}

    def lightest(self, of_all: bool = False) -> Link | None:
        """Where one more sequence should draft; None without a stream. of_all: counting those of the other
        verifiers, as last heard, and by lot where several have room, since they may be moving some as well.
        """
        usable = [link for link in self._links if link.usable]
        if of_all and len(usable) > 1:
            room = max(link.load for link in usable)
            return random.choices(usable, [room - link.load + 1e-9 for link in usable])[0]
        return min(usable, key=lambda link: (link.sequences, link.others, random.random()), default=None)

    def excess(self, link: Link) -> float:
        """The share of a link's sequences that should draft elsewhere. If every verifier moves as many of its
        own, all are as busy: none has to know what the others do."""
        loads = [each.load for each in self._links if each.usable]
        if not link.usable or len(loads) < 2:
            return 0.0
        average = sum(loads) / len(loads)
        over = link.load - average
        return over / link.load if over >= max(_EXCESS, _EXCESS_SHARE * average) else 0.0

    def start(self) -> None:
        """Looks for replicas from now on, until `aclose`."""
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        wait = _FIRST_S
        while True:
            found = await self._resolver.replicas()
            if found is not None:
                self._follow(found)
            self._looked()
            if any(link.usable for link in self._links):
                wait = _FIRST_S
                await asyncio.sleep(_LOOK_S)
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_S)

    def _follow(self, found: list[Address]) -> None:
        listed = {each.address: each for each in found}
        for link in self._links:
            there = listed.pop(link.address.address, None)
            if there is None:
                link.leaving = True
            else:
                link.others = max(0, there.sessions - link.sequences)
        for address in listed.values():
            link = Link(
                address,
                self._hello,
                self._channel,
                self._numbers,
                self._traffic,
                self._receive,
                self._lost,
            )
            link.others = address.sessions
            self._links[link] = asyncio.create_task(link.run())

    @property
    def leaving(self) -> list[Link]:
        """Those of which nothing more is to be asked."""
        return [link for link in self._links if link.leaving]

    def end(self, link: Link) -> None:
        """Ends a stream and forgets its replica."""
        task = self._links.pop(link, None)
        if task is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Ends all streams."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        tasks, self._links = list(self._links.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
