"""Where a drafter runs: in a thread of its own, in which plans of all streams are gathered into one call
while the last one runs; or on the event loop, if it takes no longer than a thread takes to wake up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from cluster.drafting import Drafter
from cluster.drafting.drafter import DraftJob, Foreseer
from cluster.speculation.messages import DraftBlock, Forecast, Outcome
from drafter_service.sessions import Session

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """What came of work: its block, the error that took its place, or neither when a newer plan replaced it.

    forecast: of work ahead, instead of a block; elapsed_ns: time of the drafter's call, which may have served
    other plans too.
    """

    block: DraftBlock | None = None
    forecast: Forecast | None = None
    error: Exception | None = None
    elapsed_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A block wanted of a session after its first `upto` tokens; done: called once, on the event loop.

    length, width: as of DraftJob; verified: the block of the round that comes next: work ahead, for a
    forecast of that round, which waits while there is other work; fused: for a drafter that reads them,
    features of the session's first upto - 1 tokens.
    """

    session: Session
    upto: int
    length: int
    done: Callable[[Drafted], None]
    stop_below: float = 0.0
    verified: tuple[int, ...] | None = None
    fused: Tensor | None = None
    width: int = 1


class Drafting(Protocol):
    """A drafter at work, for one event loop. A session's newer work replaces older work that has not begun,
    and so does closing it."""

    @property
    def alive(self) -> bool:
        """Whether what is submitted will be done."""

    def start(self) -> None:
        """On the event loop."""

    def submit(self, work: Work) -> None:
        """On the event loop."""

    def close(self, session: Session) -> None:
        """The drafter may forget it. On the event loop."""

    def stop(self) -> None:
        """Ends after the call that is running, and waits for it. Blocks."""


def drafting(drafter: Drafter) -> Drafting:
    """Where this drafter is to run."""
    return DraftingOnLoop(drafter) if isinstance(drafter, Foreseer) else DraftingThread(drafter)


class _Sessions:
    """What a drafter has of each session.

    A session is opened in the drafter when it first drafts, and again after an error, from the
    tokens that the session holds: whatever a failed call left behind is never drafted from.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._foreseer = drafter if isinstance(drafter, Foreseer) else None
        # How many of a session's tokens the drafter has; absent: not open there.
        self._fed: dict[int, int] = {}

    def draft(self, batch: list[Work]) -> list[tuple[Work, Drafted]]:
        """What came of each, in one call."""
        began = time.perf_counter_ns()
        try:
            blocks = self._drafter.draft([self._job(work) for work in batch])
            if len(blocks) != len(batch):
                raise RuntimeError(
                    f"{self._drafter.model} answered {len(batch)} jobs with {len(blocks)} blocks"
                )
        except Exception as error:
            for work in batch:
                self.forget(work.session.number)
            if len(batch) > 1:
                # Whose fault it was is not known: each on its own.
                return [drafted for work in batch for drafted in self.draft([work])]
            _log.warning("drafting failed: %s: %s", type(error).__name__, error)
            return [(batch[0], Drafted(error=error, elapsed_ns=time.perf_counter_ns() - began))]
        elapsed = time.perf_counter_ns() - began
        for work in batch:
            self._fed[work.session.number] = work.upto
        return [(work, Drafted(block, elapsed_ns=elapsed)) for work, block in zip(batch, blocks, strict=True)]

    def foresee(self, work: Work) -> Drafted:
        """By a drafter that does not tell of all outcomes: of the one that it takes for the likeliest, that
        the whole block is kept and its own next token follows."""
        began = time.perf_counter_ns()
        try:
            if self._foreseer is not None:
                forecast = self._foreseer.foresee(self._job(work))
            else:
                job = self._job(work)
                [block] = self._drafter.draft([replace(job, length=1 + job.length)])
                forecast = _likeliest(len(job.guess), block)
        except Exception as error:
            self.forget(work.session.number)
            _log.warning("drafting ahead failed: %s: %s", type(error).__name__, error)
            return Drafted(error=error)
        self._fed[work.session.number] = work.upto
        return Drafted(forecast=forecast, elapsed_ns=time.perf_counter_ns() - began)

    def _job(self, work: Work) -> DraftJob:
        session = work.session
        fed = self._fed.get(session.number)
        # Of all tokens but the last, which has none yet.
        fused = None if work.fused is None else work.fused[0 if fed is None else fed - 1 :]
        if fed is None:
            tokens = tuple(session.tokens[: work.upto])
            self._drafter.open(replace(session.spec, sequence=session.number, prompt_ids=tokens))
            fed = work.upto
        committed = tuple(session.tokens[fed : work.upto])
        guess = work.verified or ()
        wanted = work.length, work.stop_below, guess, fused, work.width
        return DraftJob(session.number, committed, *wanted)

    def forget(self, number: int) -> None:
        """Closes the session in the drafter."""
        self._fed.pop(number, None)
        try:
            self._drafter.close(number)
        except Exception:
            _log.exception("a drafter could not close a session")


class DraftingOnLoop(_Sessions):
    """Runs a drafter that takes microseconds: it is done when `submit` returns."""

    alive = True

    def start(self) -> None:
        pass

    def submit(self, work: Work) -> None:
        if work.verified is None:
            [(_, drafted)] = self.draft([work])
        else:
            drafted = self.foresee(work)
        work.done(drafted)

    def close(self, session: Session) -> None:
        self.forget(session.number)

    def stop(self) -> None:
        pass


class DraftingThread(_Sessions):
    """Runs a drafter in a thread of its own: drafters serve one caller at a time."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self._inbox: queue.SimpleQueue[Work | Session | None] = queue.SimpleQueue()
        # Work ahead that has not begun, oldest first.
        self._ahead: dict[int, Work] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="drafting", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._inbox.put(work)

    def close(self, session: Session) -> None:
        self._inbox.put(session)

    def stop(self) -> None:
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _done(self, work: Work, drafted: Drafted) -> None:
        assert self._loop is not None  # or the thread would not run
        # A loop that is closed has no stream left to answer.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work.done, drafted)

    def _run(self) -> None:
        while True:
            items = [] if self._ahead and self._inbox.empty() else [self._inbox.get()]
            while not self._inbox.empty():
                items.append(self._inbox.get())
            newest: dict[int, Work] = {}
            for item in items:
                if item is None:
                    for work in (*newest.values(), *self._ahead.values()):
                        self._done(work, Drafted())
                    return
                number = item.number if isinstance(item, Session) else item.session.number
                # Whatever was to be done for the session has been overtaken.
                for waiting in (newest, self._ahead):
                    if number in waiting:
                        self._done(waiting.pop(number), Drafted())
                if isinstance(item, Session):
                    self.forget(number)
                else:
                    (newest if item.verified is None else self._ahead)[number] = item
            if newest:
                for work, drafted in self.draft(list(newest.values())):
                    self._done(work, drafted)
            elif self._ahead:
                work = self._ahead.pop(next(iter(self._ahead)))
                self._done(work, self.foresee(work))


def _likeliest(kept: int, block: DraftBlock) -> Forecast:
    """block: after a guess, from the token on that the drafter takes for the verifier's own."""
    if len(block.tokens) < 2:
        return Forecast()
    rest = DraftBlock(block.tokens[1:], block.max_q[1:])
    return Forecast((Outcome(kept, block.tokens[0], rest),))
