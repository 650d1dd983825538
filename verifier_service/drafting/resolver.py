"""Where drafter replicas are to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Address:
    """address: host:port of a drafter's gRPC server; replica: its name; sessions: sequences that are open
    there, of all verifiers."""

    address: str
    replica: str
    sessions: int = 0


class Resolver(Protocol):
    """Finds drafter replicas. Called from one event loop, one call at a time."""

    async def replicas(self) -> list[Address] | None:
        """All that there are now, None where that cannot be said; answers within seconds, never raises."""


class StaticResolver:
    """Addresses known beforehand, or told by a function, which returns None while there is none."""

    def __init__(self, *addresses: str | Callable[[], str | None]) -> None:
        self._addresses = addresses

    async def replicas(self) -> list[Address]:
        found = [address() if callable(address) else address for address in self._addresses]
        return [Address(address, address) for address in found if address]
