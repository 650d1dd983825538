"""A drafter in the engine's own process and thread."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from cluster.drafting import Drafter
from cluster.drafting.drafter import DraftJob, within
from cluster.speculation.messages import DrafterIdentity, SessionSpec
from verifier_service.drafting.port import Deliver, DraftReply, DraftTicket, Fallback


class LocalDrafting:
    """Answers each ticket before `request` returns. Raises ValueError if not connected first."""

    # There is nothing to wait for.
    foresees = apart = False

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._identity = DrafterIdentity(drafter.model, drafter.kind, "in-process")
        self._deliver: Deliver | None = None
        # Features that no job has brought so far, by sequence.
        self._fused: dict[int, list[Tensor]] = {}

    @property
    def at_once(self) -> bool:
        return self._drafter.certain

    @property
    def reads(self) -> bool:
        return self._drafter.features is not None

    def hold(self) -> None:
        pass

    def send(self) -> None:
        pass

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def open(self, spec: SessionSpec) -> None:
        self._drafter.open(spec)
        self._fused.pop(spec.sequence, None)

    def feed(self, sequence: int, rows: Tensor) -> None:
        self._fused.setdefault(sequence, []).append(rows)

    def request(self, ticket: DraftTicket) -> bool:
        if self._deliver is None:
            raise ValueError("connect before the first ticket")
        if not ticket.length:
            return False
        asked = within(self._drafter.context, ticket.base, ticket.length, self._drafter.longest)
        began = time.perf_counter()
        block, fallback, detail = None, None, ""
        fused = self._fused.pop(ticket.sequence, None)
        rows = torch.cat(fused) if fused else None
        job = DraftJob(
            ticket.sequence, ticket.committed, asked, ticket.stop_below, fused=rows, width=ticket.width
        )
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
        return True

    def close(self, sequence: int, reason: str) -> None:
        self._drafter.close(sequence)
        self._fused.pop(sequence, None)
