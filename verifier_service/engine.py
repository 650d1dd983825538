"""The step loop: continuous batching over sequences that prefill, wait for drafts, or are ready."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from opentelemetry.trace import Tracer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cluster.kernels.attention import PAGE
from cluster.scheduling import Planner, VerifyCost
from cluster.speculation.audit import AuditState
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from cluster.speculation.provenance import Numerics
from cluster.speculation.request import (
    Failed,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Refused,
    TokenLogprob,
)
from cluster.speculation.sampling import target_probs
from cluster.telemetry.detail import Detail
from cluster.telemetry.sequence import SequenceTrace, step_span
from verifier_service.audit.auditor import Auditor
from verifier_service.audit.replay import Replay
from verifier_service.composing import compose
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort, DraftReply
from verifier_service.grammar import GrammarError, Grammars
from verifier_service.limits import Limits, Load
from verifier_service.logprobs import logprobs_of
from verifier_service.measurements import Measurements
from verifier_service.metering import Meters
from verifier_service.replaying import Replaying
from verifier_service.rounds import Rounds
from verifier_service.sequence import Phase, Sequence, Sink
from verifier_service.target import Rows, TargetModel
from verifier_service.text import TextStream
from verifier_service.uncertainty import uncertain
from verifier_service.verification import verify, verify_together

log = logging.getLogger(__name__)

_SHUTTING_DOWN = "the verifier is shutting down"


class Engine:
    """Owns every sequence. `submit`, `cancel`, `deliver` may be called from any thread; `step` and
    `run` belong to one. measurements: what planners are shown; to be read, in that thread.
    """

    def __init__(
        self,
        target: TargetModel,
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
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._grammars = Grammars(tokenizer, target.vocab_size, stop_ids)
        self._numerics = numerics
        self._planner = planner
        self.measurements = Measurements(profile)
        self._rounds = Rounds(planner, drafting, target.vocab_size, limits, self.measurements, meters)
        self._limits = limits
        self._tracer = tracer
        self._detail = Detail.from_environment()
        self._replica = replica
        self._auditor = auditor
        self._meters = meters
        self._replaying = Replaying(auditor, self._sequence, numerics) if auditor is not None else None
        self._lock = threading.Condition()
        self._submitted: deque[Sequence] = deque()
        self._cancelled: set[str] = set()
        self._replies: deque[DraftReply] = deque()
        self._stopping = False
        self._queued: deque[Sequence] = deque()
        self._active: dict[int, Sequence] = {}
        self._kv_reserved = 0
        self._events: list[tuple[Sequence, GenerationEvent]] = []
        self._numbers = 0
        if drafting is not None:
            drafting.connect(self.deliver)

    # -- from any thread ---------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Takes a request; its events go to `sink`, called from the engine's thread, a refusal at once."""
        fault = ""
        with self._lock:
            stopping = self._stopping
            full = len(self._submitted) + len(self._queued) >= self._limits.max_queued
            if not full and not stopping:
                self._numbers += 1
                try:
                    sequence = self._sequence(self._numbers, request, sink)
                    sequence.trace.queued()
                    self._submitted.append(sequence)
                    self._lock.notify()
                except GrammarError as error:
                    fault = f"the grammar cannot be followed: {error}"
        if fault:
            sink(Failed(fault))
        elif stopping:
            sink(Failed(_SHUTTING_DOWN))
        elif full:
            sink(Refused(f"the verifier's queue of {self._limits.max_queued} requests is full"))

    def _sequence(self, number: int, request: GenerationRequest, sink: Sink) -> Sequence:
        text = TextStream(self._tokenizer, request.stop, request.resumed_ids, request.controls.min_tokens)
        trace = SequenceTrace(self._tracer, request.traceparent, self._detail)
        ends = request.stop_ids if request.ignore_eos else request.stop_ids | self._stop_ids
        constraint = self._grammars.constraint(request.grammar) if request.grammar else None
        return Sequence(number, request, sink, text, trace, self._numerics, ends, constraint)

    def cancel(self, request_id: str) -> None:
        """Frees a request's sequence before the next step; no event follows, no error if it is over."""
        with self._lock:
            self._cancelled.add(request_id)
            self._lock.notify()

    def deliver(self, reply: DraftReply) -> None:
        """Takes a drafter's reply."""
        with self._lock:
            self._replies.append(reply)
            self._lock.notify()

    def load(self) -> Load:
        with self._lock:
            return Load(self._clients(), len(self._queued) + len(self._submitted), self._kv_reserved)

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
        with self._lock:
            self._stopping = True
            self._lock.notify()

    # -- the engine's thread -----------------------------------------------------------------------

    def run(self) -> None:
        """Steps until `stop`; sleeps while there is nothing to do."""
        while not self._stopping:
            self.step()
        for sequence in [*self._active.values(), *self._queued, *self._submitted]:
            self._fail(sequence, _SHUTTING_DOWN)
        self._tell()

    def step(self) -> None:
        """One round of whatever is ready; waits for the next event if nothing is."""
        self._take_in()
        self._gather()
        batch = compose(self._active.values(), self._planner, self._limits.step_rows, self.measurements)
        if batch:
            try:
                self._forward(batch)
            except Exception as error:
                # Losing a batch must not lose the engine: the next requests find it working.
                log.exception("a step failed")
                for sequence, _ in batch:
                    if sequence.number in self._active:
                        self._fail(sequence, f"the verifier's forward failed: {type(error).__name__}")
        # First the drafters, then the clients: what the latter cost hides behind the drafting.
        decoding = sum(sequence.phase is not Phase.PREFILL for sequence in self._active.values())
        for sequence in list(self._active.values()):
            if sequence.phase is Phase.IDLE:
                self._rounds.begin(sequence, decoding)
        self._tell()

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
                self._release(sequence, "failed")

    def _take_in(self) -> None:
        """Handles what other threads left: cancels, replies, new requests; admits those that fit."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, set()
            replies, self._replies = self._replies, deque()
            self._queued.extend(self._submitted)
            self._submitted.clear()
        if cancelled:
            for sequence in list(self._active.values()):
                if sequence.request.request_id in cancelled:
                    sequence.trace.ended("cancelled", "the client cancelled")
                    self._release(sequence, "cancelled")
            for sequence in [s for s in self._queued if s.request.request_id in cancelled]:
                sequence.trace.ended("cancelled", "the client cancelled")
                self._queued.remove(sequence)
        for reply in replies:
            self._receive(reply)
        while self._queued:
            if self._has_room(self._queued[0]):
                self._admit(self._queued.popleft())
            else:
                interrupted = self._replaying.interrupted() if self._replaying is not None else None
                if interrupted is None:
                    break
                self._release(interrupted, "interrupted")
        if self._replaying is not None and not self._queued:
            replay = self._replaying.next()
            if replay is not None and self._has_room(replay):
                self._admit(replay)
                self._replaying.began(replay)

    def _clients(self) -> int:
        """Active sequences without the one that decodes an answer again."""
        return len(self._active) - (self._replaying is not None and self._replaying.sequence is not None)

    def _has_room(self, sequence: Sequence) -> bool:
        if not self._active:
            return True
        fits = self._kv_reserved + self._kv_needed(sequence) <= self._limits.kv_tokens
        return fits and len(self._active) < self._limits.max_active

    def _kv_needed(self, sequence: Sequence) -> int:
        # A round's rejected rows never lie beyond the tokens that the request may still emit.
        tokens = sequence.prompt + sequence.request.max_tokens
        return -(-tokens // PAGE) * PAGE

    def _admit(self, sequence: Sequence) -> None:
        kv_tokens = self._kv_needed(sequence)
        self._kv_reserved += kv_tokens
        sequence.cache = self._target.pool.open()
        self._active[sequence.number] = sequence
        sequence.trace.admitted()
        sequence.trace.prefill_began()
        self._rounds.open(sequence)
        if self._auditor is not None:
            sequence.subject = self._auditor.subject(sequence.request)

    def _receive(self, reply: DraftReply) -> None:
        self._rounds.receive(self._active.get(reply.sequence), reply)

    def _gather(self) -> None:
        """Waits until a sequence can go on: at most until a deadline, and only `gather` seconds more
        for the blocks of others once one can."""
        patience: float | None = None
        while True:
            now = time.monotonic()
            waiting = [s for s in self._active.values() if s.phase is Phase.DRAFTING]
            self._rounds.give_up(waiting, now)
            waiting = [s for s in waiting if s.phase is Phase.DRAFTING]
            # A replay goes along with others, and alone only where there are none.
            clients = self._clients()
            able = clients > len(waiting) or (not waiting and clients < len(self._active))
            if able and patience is None:
                patience = now + self._limits.gather
            if able and (not waiting or now >= (patience or 0.0)):
                return
            ends = [s.deadline for s in waiting] + ([patience] if patience is not None else [])
            with self._lock:
                pending = self._replies or self._cancelled or self._stopping or (self._submitted and not able)
                if not pending:
                    self._lock.wait(min(ends) - now if ends else None)
                if self._stopping or self._cancelled or (self._submitted and not able):
                    return
                replies, self._replies = self._replies, deque()
            for reply in replies:
                self._receive(reply)

    def _forward(self, batch: list[tuple[Sequence, Rows]]) -> None:
        deciding = [sequence for sequence, rows in batch if rows.wanted]
        total = sum(len(rows.tokens) for _, rows in batch)
        plain = all(sequence.phase is not Phase.PREFILL for sequence, _ in batch)
        decoding = sum(sequence.phase is not Phase.PREFILL for sequence in self._active.values())
        began = time.monotonic()
        with step_span(self._tracer, [s.trace for s, _ in batch], len(deciding), total) as step:
            for sequence, _ in batch:
                if sequence.phase is not Phase.PREFILL:
                    sequence.trace.verify_began(len(deciding), total, step)
            logits = self._target.forward([rows for _, rows in batch])
            for sequence, rows in batch:
                rows.cache.length = rows.start + len(rows.tokens)
                if sequence.phase is Phase.PREFILL and rows.wanted:
                    # The prompt's last row decides the first token: a round that comes without a forward.
                    sequence.trace.prefill_ended(sequence.given)
                    sequence.begin(0)
                    sequence.trace.verify_began(len(deciding), total, step)
            self._decide(
                [
                    (sequence, rows_logits)
                    for (sequence, rows), rows_logits in zip(batch, logits, strict=True)
                    if rows.wanted
                ]
            )
        if plain:
            keys = sum(rows.start * len(rows.tokens) for _, rows in batch)
            tokens = sum(len(sequence.tokens) - rows.start - 1 for sequence, rows in batch)
            seconds = time.monotonic() - began
            self.measurements.stepped(decoding, total, keys, tokens, seconds)

    def _decide(self, deciding: list[tuple[Sequence, Tensor]]) -> None:
        """Ends the rounds of sequences; logits: of a sequence's last token and its drafts, [N+1, V].

        A sequence whose rows cannot be decided fails by itself.
        """
        cases = []
        for sequence, logits in deciding:
            # The largest of a row is NaN if any is; single tokens may well be at minus infinity.
            if not bool(logits.amax(dim=-1).isfinite().all()):
                self._fail(sequence, "the model's logits are no distribution: they are not finite")
                continue
            request = sequence.request
            controlled = sequence.controller.apply(logits, sequence.block)
            if not bool(controlled.amax(dim=-1).isfinite().all()):
                self._fail(sequence, "the request's parameters forbid every token")
                continue
            probs = target_probs(controlled, request.sampling)
            noise = Noise(request.seed, len(sequence.tokens))
            case = (request.law, probs, sequence.block, noise)
            cases.append((sequence, logits, controlled, case))
        try:
            verdicts: list[Verdict | None] = [*verify_together([case for _, _, _, case in cases])]
        except ValueError:
            verdicts = [self._verdict(sequence, case) for sequence, _, _, case in cases]
        error = self._numerics.logit_discrepancy
        for (sequence, raw, controlled, (law, probs, _, noise)), verdict in zip(cases, verdicts, strict=True):
            if verdict is None:
                continue
            if sequence.replay is not None and self._replaying is not None:
                if self._replaying.compare(sequence, verdict.tokens[0], controlled[0], probs[0]):
                    self._release(sequence, "compared")
                continue
            if self._auditor is not None and sequence.subject is not None:
                seen = (probs, sequence.block, verdict, noise)
                self._auditor.round(sequence.request, sequence.subject, sequence.drafter, *seen)
            request = sequence.request
            doubts: tuple[bool, ...] = ()
            if error and not LAWS[law.name].sends_rows:
                doubts = uncertain(controlled, probs, request.sampling, noise, verdict.tokens, error)
            told = () if request.logprobs is None else logprobs_of(raw, verdict, request.logprobs)
            self._commit(sequence, verdict, doubts, told)

    def _verdict(self, sequence: Sequence, case: tuple[Law, Tensor, DraftBlock, Noise]) -> Verdict | None:
        """One sequence's verdict; none if it cannot be had, and the sequence has failed."""
        try:
            return verify(*case)
        except ValueError as error:
            self._fail(sequence, f"the block could not be verified: {error}")
            return None

    def _commit(
        self,
        sequence: Sequence,
        verdict: Verdict,
        doubts: tuple[bool, ...],
        logprobs: tuple[TokenLogprob, ...],
    ) -> None:
        before = len(sequence.tally.origins)
        reason = sequence.commit(verdict, doubts, logprobs)
        self._rounds.ended(sequence)
        assert sequence.cache is not None
        sequence.cache.length = len(sequence.tokens) - 1
        # What is left after discards; a stop string may even reach back into earlier rounds.
        emitted = max(0, len(sequence.tally.origins) - before)
        accepted = min(verdict.accepted, emitted)
        if self._meters is not None:
            self._meters.round(
                sequence.request.law.name,
                sequence.drafter if sequence.block.tokens else "",
                sequence.request.domain,
                drafted=len(sequence.block.tokens),
                decided=len(verdict.tokens),
                origins=sequence.tally.origins[before:],
                withdrawn=max(0, before - len(sequence.tally.origins)),
                seconds=time.monotonic() - sequence.began if sequence.tally.rounds > 1 else None,
            )
        sequence.trace.verify_ended(accepted, emitted)
        sequence.trace.round_ended(str(sequence.request.law), len(sequence.block.tokens), accepted, emitted)
        committed = sequence.release(final=reason is not None)
        if committed is not None:
            self._events.append((sequence, committed))
        if reason is None:
            sequence.phase = Phase.IDLE
        else:
            self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        provenance = sequence.provenance(self._replica)
        sequence.trace.ended("finished", reason)
        if self._auditor is not None and sequence.subject is not None:
            end = [] if sequence.end is None else [sequence.end]
            emitted = [*sequence.tokens[sequence.prompt :], *end]
            self._auditor.replays.consider(Replay(sequence.request, emitted, sequence.subject))
        self._release(sequence, reason)
        finished = Finished(reason, sequence.prompt, provenance.emitted_tokens, provenance)
        self._events.append((sequence, finished))

    def _fail(self, sequence: Sequence, detail: str) -> None:
        sequence.trace.ended("failed", detail)
        self._release(sequence, "failed")
        self._events.append((sequence, Failed(detail)))

    def _release(self, sequence: Sequence, reason: str) -> None:
        if self._active.pop(sequence.number, None) is not None:
            self._kv_reserved -= self._kv_needed(sequence)
            if sequence.cache is not None:
                sequence.cache.release()
            sequence.cache = None
            self._rounds.close(sequence, reason)
        if self._replaying is not None:
            self._replaying.left(sequence)
