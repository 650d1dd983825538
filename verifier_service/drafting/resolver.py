"""Where a drafter replica is to be found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

_log = logging.getLogger(__name__)

# Serve is asked this often for a replica other than the one to avoid.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Address:
    """address: host:port of a drafter's gRPC server; replica: its name."""

    address: str
    replica: str


class Resolver(Protocol):
    """Finds drafter replicas. Called from one event loop, one call at a time."""

    async def resolve(self, avoid: str = "") -> Address | None:
        """A replica, None when there is none now; answers within seconds and never raises.

        avoid: name of a replica that is taken only if no other is found.
        """

    async def aclose(self) -> None:
        """Gives up whatever is under way."""


class StaticResolver:
    """One address, known beforehand or by asking `address`, which returns None while there is none."""

    def __init__(self, address: str | Callable[[], str | None]) -> None:
        self._address = address

    async def resolve(self, avoid: str = "") -> Address | None:
        address = self._address() if callable(self._address) else self._address
        return Address(address, address) if address else None

    async def aclose(self) -> None:
        pass


class _Selection(Protocol):
    replica_metadata: dict[str, Any]


class ReplicaChooser(Protocol):
    """The part of Serve's DeploymentHandle that is used here."""

    def choose_replica(self) -> AbstractAsyncContextManager[_Selection]:
        """Reserves a replica's slot for the time of the context."""


class ServeResolver:
    """Asks Serve's router, which waits without end while a deployment has no replica.

    A question that outlasts `timeout_s` is left running and its answer taken by the next call: to
    cancel it would leave one more waiter, and later a reserved slot, in the router.
    """

    def __init__(self, handle: ReplicaChooser, timeout_s: float = 2.0) -> None:
        self._handle = handle
        self._timeout_s = timeout_s
        self._question: asyncio.Task[Address | None] | None = None

    async def resolve(self, avoid: str = "") -> Address | None:
        if self._question is None:
            self._question = asyncio.create_task(self._choose(avoid))
        await asyncio.wait({self._question}, timeout=self._timeout_s)
        if not self._question.done():
            return None
        question, self._question = self._question, None
        try:
            return question.result()
        except Exception as error:
            # Such as DeploymentUnavailableError while the deployment is being replaced.
            _log.debug("no drafter replica: %s: %s", type(error).__name__, error)
            return None

    async def aclose(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.cancel()
            await asyncio.gather(question, return_exceptions=True)

    async def _choose(self, avoid: str) -> Address | None:
        found: Address | None = None
        for _ in range(_ATTEMPTS):
            async with self._handle.choose_replica() as selection:
                metadata = selection.replica_metadata
            # A replica without an address has not initialised; the next question may find another.
            if metadata.get("address"):
                found = Address(str(metadata["address"]), str(metadata["replica"]))
                if found.replica != avoid:
                    break
        return found
