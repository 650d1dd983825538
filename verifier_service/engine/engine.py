"""The step loop: continuous batching over sequences that prefill, wait for drafts, or are ready.

A step takes in what other threads left (inbox), gives out places (admission), waits for blocks (gathering),
composes the rows (composing), runs one forward, decides (deciding), commits (committing), and begins the next
rounds (rounds).
"""

from __future__ import annotations

import logging
import time
from typing import Any

from opentelemetry.trace import Tracer
from transformers import PreTrainedTokenizerBase

from cluster.kernels.attention import PAGE
from cluster.scheduling import Planner, VerifyCost
from cluster.speculation.audit import AuditState
from cluster.speculation.provenance import Numerics
from cluster.speculation.request import Failed, GenerationEvent, GenerationRequest, Unfollowable
from cluster.telemetry import instruments as names
from cluster.telemetry.sequence import step_span
from verifier_service.audit.auditor import Auditor
from verifier_service.audit.replay import Replay
from verifier_service.cache.kv_cache import KVPool
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort
from verifier_service.engine.admission import Admission
from verifier_service.engine.committing import Commits
from verifier_service.engine.composing import compose
from verifier_service.engine.deciding import Compared, Decided, Decisions, Faulted
from verifier_service.engine.gathering import Gathering
from verifier_service.engine.inbox import Inbox
from verifier_service.engine.intake import SHUTTING_DOWN, Intake
from verifier_service.engine.rounds import Rounds
from verifier_service.limits import Limits, Load
from verifier_service.measuring.measurements import Measurements
from verifier_service.measuring.metering import Meters
from verifier_service.measuring.pricing import Step
from verifier_service.requests.grammar import GrammarError
from verifier_service.requests.making import Maker
from verifier_service.requests.replaying import Replaying
from verifier_service.requests.sequence import Phase, Sequence, Sink
from verifier_service.target.target import Rows, TargetModel
from verifier_service.tensor_parallel.ranks import RankLostError

log = logging.getLogger(__name__)


class Engine:
    """Owns every sequence. `submit` and `cancel` may be called from any thread; `step` and `run` belong to
    one. What it is made of does not refer to it, so that its pages are free as soon as it is dropped. pool:
    the engine's alone, of the target's shape. measurements: what planners are shown; to be read, in that
    thread.
    """

    def __init__(
        self,
        target: TargetModel,
        pool: KVPool,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: frozenset[int],
        numerics: Numerics,
        planner: Planner,
        drafting: DraftingPort | Pools | None,
        limits: Limits,
        tracer: Tracer,
        replica: str = "in-process",
        auditor: Auditor | None = None,
        profile: VerifyCost | None = None,
        meters: Meters | None = None,
    ) -> None:
        self._target = target
        self._pool = pool
        make = Maker(tokenizer, target.vocab_size, stop_ids, numerics, tracer, target.adapters)
        self._planner = planner
        self.measurements = Measurements(profile)
        self._rounds = Rounds(planner, drafting, target.vocab_size, limits, self.measurements, meters)
        self._limits = limits
        self._tracer = tracer
        self._auditor = auditor
        self._meters = meters
        replaying = Replaying(auditor, make, numerics) if auditor is not None else None
        self._inbox = Inbox()
        self._admission = Admission(pool, limits, self._rounds, auditor, replaying, meters)
        self._gathering = Gathering(
            self._inbox,
            self._admission,
            self._rounds,
            self.measurements,
            limits.gather,
            drafting,
        )
        self._decisions = Decisions(numerics, auditor, replaying)
        self._commits = Commits(self._rounds, auditor, meters, replica)
        self._intake = Intake(target, make, self._inbox, self._admission, self._commits, limits)
        self._events: list[tuple[Sequence, GenerationEvent]] = []
        # When the last step ended, and how long was waited since.
        self._ended, self._waited = time.monotonic(), 0.0
        self._drafting = drafting
        if drafting is not None:
            drafting.connect(self._inbox.reply)

    # -- from any thread ---------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Takes a request; its events go to `sink`, called from the engine's thread, a refusal at once."""
        self._intake.take(request, sink)

    def cancel(self, request_id: str) -> None:
        """Frees a request's sequence before the next step; no event follows, no error if it is over."""
        self._inbox.cancel(request_id)

    def load(self) -> Load:
        admission = self._admission
        return Load(
            admission.clients, self._intake.waiting + admission.returning, self._pool.pages.held * PAGE
        )

    def kept_tokens(self) -> int:
        """Room for tokens in pages that no sequence holds and whose content may be used again."""
        return self._pool.pages.kept * PAGE

    def audits(self) -> tuple[AuditState, ...]:
        """What live audits know so far."""
        return self._auditor.states() if self._auditor is not None else ()

    def counted(self) -> dict[str, Any]:
        """What was counted so far, for people; empty where nothing counts."""
        return self._meters.state() if self._meters is not None else {}

    def replay(self, replay: Replay) -> None:
        """Has an answer decoded again, whatever the share; before the first step or in the engine's thread.
        Raises ValueError where nothing is audited."""
        if self._auditor is None:
            raise ValueError("an engine without audits replays nothing")
        self._auditor.replays.add(replay)

    def stop(self) -> None:
        """Makes `run` return after the current step."""
        self._inbox.stop()

    # -- the engine's thread -----------------------------------------------------------------------

    def run(self) -> None:
        """Steps until `stop`; sleeps while there is nothing to do."""
        while not self._inbox.stopping:
            self.step()
        for sequence in [*self._admission, *self._inbox.empty().requests]:
            self._fail(sequence, SHUTTING_DOWN, event=Failed(SHUTTING_DOWN, leaving=True))
        self._send()
        self._tell()

    def step(self) -> None:
        """One round of whatever is ready; waits for the next event if nothing is."""
        active = self._admission.active
        self._take_in()
        self._waited += self._gathering.wait()
        batch = compose(
            active.values(),
            self._planner,
            self._limits.step_rows,
            self.measurements,
            self._admission.prepare,
        )
        if batch:
            try:
                self._forward(batch)
            except RankLostError as error:
                # Nothing can be computed any more: others are to go on with every answer.
                log.exception("a step failed for good")
                self._inbox.stop()
                for sequence in [*self._admission]:
                    self._fail(sequence, str(error), event=Failed(str(error), leaving=True))
            except Exception as error:
                # Losing a batch must not lose the engine: the next requests find it working.
                log.exception("a step failed")
                for sequence, _ in batch:
                    if sequence.number in active:
                        detail = f"the verifier's forward failed: {type(error).__name__}"
                        self._fail(sequence, detail, sound=False)
        # First the drafters, then the clients: what the latter cost hides behind the drafting.
        decoding = self._decoding()
        if self._drafting is not None:
            self._drafting.hold()
        for sequence in list(active.values()):
            if sequence.phase is Phase.IDLE:
                self._rounds.begin(sequence, decoding)
        if self._inbox.replied < sum(sequence.phase is Phase.DRAFTING for sequence in active.values()):
            # Someone will wait for a block.
            self._send()
        self._tell()

    def _send(self) -> None:
        """Lets the drafters hear what they were asked."""
        if self._drafting is not None:
            self._drafting.send()

    def _decoding(self) -> int:
        return sum(sequence.phase is not Phase.PREFILL for sequence in self._admission.active.values())

    def _tell(self) -> None:
        """Hands out the events of the step."""
        events, self._events = self._events, []
        for sequence, event in events:
            try:
                sequence.sink(event)
            except Exception:
                # Whoever listened is gone; the other requests are not.
                request = sequence.request
                log.exception(
                    "an event of request %s was not taken",
                    request.request_id,
                    extra={"trace_id": request.trace_id},
                )
                sequence.trace.ended("failed", "its events were not taken")
                self._admission.leave(sequence, "failed")

    def _take_in(self) -> None:
        """Handles what other threads left: cancels, replies, new requests; gives places to those that fit."""
        mail = self._inbox.empty()
        for sequence in mail.requests:
            self._admission.queue(sequence)
        if mail.cancelled:
            for sequence in [each for each in self._admission if each.request.request_id in mail.cancelled]:
                sequence.trace.ended("cancelled", "the client cancelled")
                self._admission.leave(sequence, "cancelled")
        for reply in mail.replies:
            self._rounds.receive(self._admission.begun(reply.sequence), reply)
        self._admission.fill()

    def _forward(self, batch: list[tuple[Sequence, Rows]]) -> None:
        verified = [s for s, rows in batch if rows.wanted and s.phase is not Phase.PREFILL]
        deciding = sum(rows.wanted > 0 for _, rows in batch)
        total = sum(len(rows.tokens) for _, rows in batch)
        decoding, rounds = self._decoding(), self._rounds
        clear = not any(s.asks and s.asked < self._ended for s in self._admission.active.values())
        began = time.monotonic()
        with step_span(self._tracer, [s.trace for s, _ in batch], deciding, total) as step:
            for sequence in verified:
                sequence.trace.verify_began(deciding, total, step)
            # Who hears of it needs the interpreter, which is free only while the target computes.
            logits = self._target.forward([rows for _, rows in batch], self._send)
            for sequence, rows in batch:
                rows.cache.length = rows.start + len(rows.tokens)
                if sequence.phase is Phase.PREFILL or not rows.wanted:
                    self._caught_up(sequence, rows)
                if sequence.phase is Phase.PREFILL and rows.wanted:
                    # The prompt's last row decides the first token: a round that comes without a forward.
                    sequence.trace.prefill_ended(sequence.given - sequence.cached, sequence.cached)
                    sequence.begin(0)
                    sequence.trace.verify_began(deciding, total, step)
            self._decide(
                [
                    (sequence, rows_logits)
                    for (sequence, rows), rows_logits in zip(batch, logits, strict=True)
                    if rows.wanted
                ]
            )
        now = time.monotonic()
        if len(verified) == len(batch):
            keys = sum(rows.start * len(rows.tokens) for _, rows in batch)
            tokens = sum(len(sequence.tokens) - rows.start - 1 for sequence, rows in batch)
            seconds = now - self._ended - self._waited - rounds.drafting
            over = Step(len(batch), total, keys, seconds, rounds.asked, clear)
            self.measurements.stepped(decoding, tokens, now - began, over)
        else:
            self.measurements.prices.interrupted()
        rounds.stepped()
        self._ended, self._waited = now, 0.0

    def _caught_up(self, sequence: Sequence, rows: Rows) -> None:
        """A chunk of given tokens, or of those that a preemption cost, is in the sequence's cache."""
        self._admission.computed(sequence)
        self._rounds.computed(sequence)
        if self._meters is not None and sequence.replay is None:
            source = names.RECOMPUTED if sequence.returning else names.COMPUTED
            self._meters.prompt(source, len(rows.tokens))

    def _decide(self, rows: list[tuple[Sequence, Any]]) -> None:
        """Ends the rounds of sequences; with the logits of each."""
        for outcome in self._decisions.decide(rows):
            match outcome:
                case Decided(sequence):
                    try:
                        events, reason = self._commits.commit(outcome)
                    except GrammarError as error:
                        detail = f"the grammar cannot be followed: {error}"
                        self._fail(sequence, detail, sound=False, event=Unfollowable("", detail))
                        continue
                    self._events.extend((sequence, event) for event in events)
                    if reason is not None:
                        self._admission.leave(sequence, reason)
                case Faulted(sequence, detail, sound, asked):
                    self._fail(sequence, detail, sound, Unfollowable("", detail) if asked else None)
                case Compared(sequence):
                    self._admission.leave(sequence, "compared")

    def _fail(
        self, sequence: Sequence, detail: str, sound: bool = True, event: Unfollowable | Failed | None = None
    ) -> None:
        """event: where it is the request's own fault, or another verifier may go on with it."""
        sequence.trace.ended("failed", detail)
        self._admission.leave(sequence, "failed", sound)
        self._events.append((sequence, event or Failed(detail)))
