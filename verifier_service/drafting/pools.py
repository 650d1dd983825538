"""Several places that blocks may come from, by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cluster.speculation.messages import SessionSpec
from verifier_service.drafting.port import Deliver, DraftingPort, DraftTicket


class Pools:
    """Ports by name; a ticket goes to one of them. Raises ValueError for none."""

    def __init__(self, ports: Mapping[str, DraftingPort]) -> None:
        if not ports:
            raise ValueError("pools need at least one port")
        self._ports = dict(ports)
        self.names = tuple(ports)

    def hold(self) -> None:
        """See DraftingPort."""
        for port in self._ports.values():
            port.hold()

    def send(self) -> None:
        """See DraftingPort."""
        for port in self._ports.values():
            port.send()

    def connect(self, deliver: Deliver) -> None:
        for port in self._ports.values():
            port.connect(deliver)

    def foresees(self, pool: str) -> bool:
        """Raises KeyError for an unknown pool."""
        return self._ports[pool].foresees

    def apart(self, pool: str) -> bool:
        """Raises KeyError for an unknown pool."""
        return self._ports[pool].apart

    def at_once(self, pool: str) -> bool:
        """Raises KeyError for an unknown pool."""
        return self._ports[pool].at_once

    def reads(self, pool: str) -> bool:
        """Raises KeyError for an unknown pool."""
        return self._ports[pool].reads

    def open(self, pool: str, spec: SessionSpec) -> None:
        """Raises KeyError for an unknown pool."""
        self._ports[pool].open(spec)

    def feed(self, pool: str, sequence: int, rows: Tensor) -> None:
        """Raises KeyError for an unknown pool."""
        self._ports[pool].feed(sequence, rows)

    def request(self, pool: str, ticket: DraftTicket) -> bool:
        """Raises KeyError for an unknown pool."""
        return self._ports[pool].request(ticket)

    def close(self, pool: str, sequence: int, reason: str) -> None:
        """Raises KeyError for an unknown pool."""
        self._ports[pool].close(sequence, reason)
