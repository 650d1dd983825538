"""How long a step waits for blocks before it begins."""

from __future__ import annotations

import time

from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort
from verifier_service.engine.admission import Admission
from verifier_service.engine.inbox import Inbox
from verifier_service.engine.rounds import Rounds
from verifier_service.measuring.measurements import Measurements
from verifier_service.requests.sequence import Phase, Sequence
from verifier_service.requests.under_way import worth_waiting


class Gathering:
    """The engine's thread alone. least: seconds to wait for the blocks of others once one sequence is
    ready; drafting: lets drafters hear what they were asked before it waits for them."""

    def __init__(
        self,
        inbox: Inbox,
        admission: Admission,
        rounds: Rounds,
        measurements: Measurements,
        least: float,
        drafting: DraftingPort | Pools | None,
    ) -> None:
        self._inbox = inbox
        self._admission = admission
        self._rounds = rounds
        self._measurements = measurements
        self._least = least
        self._drafting = drafting

    def wait(self) -> float:
        """Waits until a sequence can go on: at most until a deadline, and for the blocks of others once one
        can only while that pays. Who need not wait for its block goes on without. Returns the seconds for
        which the engine slept."""
        slept = 0.0
        admission = self._admission
        first: float | None = None
        while True:
            now = time.monotonic()
            waiting = [s for s in admission.active.values() if s.phase is Phase.DRAFTING]
            self._rounds.give_up(waiting, now)
            waiting = [s for s in waiting if s.phase is Phase.DRAFTING and not s.behind]
            going = [s for s in waiting if s.goes_on(now)]
            waiting = [s for s in waiting if s not in going]
            # A replay goes along with others, and alone only where there are none.
            clients = admission.clients
            able = clients > len(waiting) or (not waiting and clients < len(admission.active))
            if able and first is None:
                first = now
            patience = first + self._patience(clients, waiting, now) if first is not None else None
            if able and (not waiting or now >= (patience or 0.0)):
                self._rounds.go_on(going)
                return slept
            ends = [s.patience for s in waiting] + ([patience] if patience is not None else [])
            if self._drafting is not None:
                self._drafting.send()
            replies = self._inbox.wait(min(ends) - now if ends else None, for_requests=not able)
            slept += time.monotonic() - now
            if replies is None:
                return slept
            for reply in replies:
                self._rounds.receive(admission.begun(reply.sequence), reply)

    def _patience(self, clients: int, waiting: list[Sequence], now: float) -> float:
        """Seconds that those who are ready wait for the blocks of others: at least `least`, and for blocks
        that are likely to come as long as it pays."""
        cost = self._measurements.verify
        late = sum(now < each.likely for each in waiting)
        if cost is None or not late:
            return self._least
        step = cost.of(max(1.0, clients * self._measurements.rows_per_sequence))
        return max(self._least, worth_waiting(step, clients - late, late))
