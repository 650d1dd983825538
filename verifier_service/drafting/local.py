"""A drafter in the engine's own process and thread."""

from __future__ import annotations

import time

from cluster.drafting import Drafter
from cluster.drafting.drafter import DraftJob, within
from cluster.speculation.messages import DrafterIdentity, SessionSpec
from verifier_service.drafting.port import Deliver, DraftReply, DraftTicket, Fallback


class LocalDrafting:
    """Answers each ticket before `request` returns. Raises ValueError if not connected first."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._identity = DrafterIdentity(drafter.model, drafter.kind, "in-process")
        self._deliver: Deliver | None = None

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def open(self, spec: SessionSpec) -> None:
        self._drafter.open(spec)

    def request(self, ticket: DraftTicket) -> None:
        if self._deliver is None:
            raise ValueError("connect before the first ticket")
        asked = within(self._drafter.context, ticket.base, ticket.length)
        began = time.perf_counter()
        block, fallback, detail = None, None, ""
        job = DraftJob(ticket.sequence, ticket.committed, asked, ticket.stop_below)
        try:
            [block] = self._drafter.draft([job])
        except Exception as error:
            # Whatever it is, it must not reach the engine: the sequence goes on without.
            fallback, detail = Fallback.DRAFTER_FAULT, f"{type(error).__name__}: {error}"
        elapsed = time.perf_counter() - began
        self._deliver(
            DraftReply(
                ticket.sequence,
                ticket.plan_id,
                block,
                self._identity,
                fallback,
                detail,
                elapsed,
                asked=asked,
                certain=self._drafter.certain,
            )
        )

    def close(self, sequence: int, reason: str) -> None:
        self._drafter.close(sequence)
