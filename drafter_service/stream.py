"""One verifier's stream after the handshake: messages in, blocks and faults out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer

from cluster.drafting.features import FeaturesInfo
from cluster.drafting.outbox import Outbox
from cluster.drafting.wire import take_features
from cluster.speculation.messages import DraftBlock, DrafterIdentity
from cluster.telemetry import context as trace_context
from cluster.telemetry import names
from drafter_service.load import Load
from drafter_service.replies import block_reply, fault_reply, forecast_reply
from drafter_service.sessions import Session, SessionFault, StreamSessions
from drafter_service.worker import Drafted, Drafting, Work
from truedraft.v1 import drafting_pb2

# Of features whose session is not open yet.
_MOST_EARLY_BYTES = 32 * 1024 * 1024

# The end of the traceparent of a round that is not shown.
_NOT_SAMPLED = "-00"

_log = logging.getLogger(__name__)

# What a write to a verifier that has gone raises.
_BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)

Context = grpc.aio.ServicerContext[drafting_pb2.DraftRequest, drafting_pb2.DraftResponse]


@dataclass(frozen=True, slots=True)
class Replica:
    """Who answers; incarnation: drawn anew by every start; features: what its drafter reads; foresees: its
    forecasts are exhaustive; repeats: as of Foreseer."""

    identity: DrafterIdentity
    incarnation: int
    features: FeaturesInfo | None = None
    foresees: bool = False
    repeats: int = 0


class Stream:
    """Lives on the event loop that creates it. vocab_size: ids at or above it are refused; load: of the
    replica."""

    def __init__(
        self,
        replica: Replica,
        vocab_size: int,
        drafting: Drafting,
        tracer: Tracer,
        context: Context,
        load: Load,
    ) -> None:
        self._replica = replica
        self._drafting = drafting
        self._tracer = tracer
        self._context = context
        self._load = load
        self._sessions = StreamSessions(vocab_size)
        self._outbox: Outbox[drafting_pb2.DrafterMessage] = Outbox()
        self._writer = asyncio.create_task(self._write())
        self._ended = False
        # Features that came before their session: calls do not keep order among each other.
        self._early: dict[tuple[int, int], list[drafting_pb2.FeedRequest]] = {}
        # Plans that wait for features, by sequence.
        self._waiting: dict[int, Callable[[], bool]] = {}

    @property
    def sessions(self) -> int:
        """Sequences that are open."""
        return len(self._sessions)

    def handle(self, request: drafting_pb2.DraftRequest) -> None:
        """Never raises: what cannot be honoured is answered with a Fault."""
        if request.HasField("hello") or not request.messages:
            self._misplaced("hello" if request.HasField("hello") else "an empty request")
        for message in request.messages:
            self._handle(message)

    def _handle(self, message: drafting_pb2.VerifierMessage) -> None:
        kind = message.WhichOneof("message")
        if kind is None:
            self._misplaced("an unknown message")
            return
        content = getattr(message, kind)
        try:
            match kind:
                case "open":
                    self._release(self._sessions.open(content))
                    self._waiting.pop(content.sequence, None)
                    for early in self._early.pop((content.sequence, content.epoch), []):
                        self.feed(early)
                case "plan":
                    self._plan(content)
                case "close":
                    self._release(self._sessions.close(content))
                    self._waiting.pop(content.sequence, None)
        except SessionFault as fault:
            self._fault(fault.code, str(fault), content)
        except Exception as error:
            _log.exception("a message could not be handled")
            self._fault(drafting_pb2.FAULT_CODE_DRAFTER_FAILED, _described(error), content)

    def _misplaced(self, what: str) -> None:
        # Without a session's numbers: the stream's own fault.
        detail = f"{what} is out of place after Hello"
        self._fault(drafting_pb2.FAULT_CODE_INVALID_MESSAGE, detail, drafting_pb2.Close())

    def feed(self, message: drafting_pb2.FeedRequest) -> None:
        """Takes features, and drafts what waited for them. Never raises, as above."""
        info = self._replica.features
        session = self._sessions.session(message.sequence, message.epoch)
        if session is None or info is None:
            self._keep_early(message)
            return
        try:
            session.feed(message.start, take_features(message.rows, info))
        except (SessionFault, ValueError) as fault:
            close = drafting_pb2.Close(sequence=message.sequence, epoch=message.epoch)
            self._fault(drafting_pb2.FAULT_CODE_INVALID_MESSAGE, str(fault), close)
            return
        begin = self._waiting.get(message.sequence)
        if begin is not None and begin():
            self._waiting.pop(message.sequence, None)

    def _keep_early(self, message: drafting_pb2.FeedRequest) -> None:
        """Until its session opens; the oldest give way, which may be those of a session that is over."""
        self._early.setdefault((message.sequence, message.epoch), []).append(message)
        held = sum(len(each.rows) for kept in self._early.values() for each in kept)
        while held > _MOST_EARLY_BYTES:
            dropped = self._early.pop(next(iter(self._early)))
            held -= sum(len(each.rows) for each in dropped)

    def leave(self) -> None:
        """Tells the verifier that the replica is about to end."""
        self._send(drafting_pb2.DrafterMessage(leaving=drafting_pb2.Leaving()))

    async def end(self) -> None:
        """Close what is open and let the writer go; nothing is written from here on."""
        self._ended = True
        for session in self._sessions.close_all():
            self._release(session)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    def _plan(self, plan: drafting_pb2.Plan) -> None:
        session = self._sessions.commit(plan)
        told, session.told = session.told.get(plan.prefix_hash), {}
        verified, session.verified = session.verified, DraftBlock()
        if plan.held:
            # Of an outcome that no forecast told there is no block but the rest of one that was cut.
            rest = told or verified.after(plan.committed_ids) or DraftBlock()
            block = rest.first(plan.block_length)
            span = self._span(plan)
            span.set_attribute(names.DRAFT_TOKENS, len(block.tokens))
            self._go_on(plan, session, block)
            span.end()
        elif told is not None and plan.width <= 1:
            self._answer(plan, session, self._span(plan), Drafted(told.first(plan.block_length)))
        else:
            received, upto = time.time_ns(), len(session.tokens)
            reads = self._replica.features is not None

            def begin() -> bool:
                """Drafts if what it needs is there."""
                there = not reads or session.fed >= upto - 1
                if there:
                    span = self._span(plan, received)

                    def answer(drafted: Drafted) -> None:
                        self._load.add(-1)
                        self._answer(plan, session, span, drafted)

                    fused = session.fused(upto - 1) if reads else None
                    self._load.add(1)
                    wanted = plan.block_length, answer, plan.stop_below
                    self._drafting.submit(Work(session, upto, *wanted, fused=fused, width=max(plan.width, 1)))
                return there

            self._waiting.pop(plan.sequence, None)
            if not begin():
                self._waiting[plan.sequence] = begin

    def _go_on(self, plan: drafting_pb2.Plan, session: Session, block: DraftBlock) -> None:
        """Pushes a forecast of the round that verifies the block, if the plan grants it."""
        if self._sessions.session(plan.sequence, plan.epoch) is not session:
            # It was closed while the block was drafted: work behind the close would open it for good.
            return
        base = plan.base_committed_len + len(plan.committed_ids)
        # Where blocks come with proposals, each is drawn by noise of its own round, which is not known yet.
        if not plan.ahead_length or session.spec.proposal_entries or len(session.tokens) != base:
            return
        if block.parents is not None:
            # A tree has too many outcomes.
            return
        if self._replica.features is not None:
            # Of what is not committed there are none.
            return
        if not self._replica.foresees and not len(block.tokens) == plan.block_length > 0:
            # Where the drafter ended a block it has nothing to go on with.
            return

        session.verified = block

        def push(drafted: Drafted) -> None:
            forecast = drafted.forecast
            if forecast is None or len(session.tokens) != base:
                return
            if not forecast.outcomes and not forecast.exhaustive:
                return
            blocks = {
                session.prefix.digest_after((*block.tokens[: each.kept], each.token)): each.block
                for each in forecast.outcomes
            }
            session.told.update(blocks)
            message = forecast_reply(
                plan, self._replica.incarnation, blocks, forecast.exhaustive, drafted.elapsed_ns
            )
            self._send(drafting_pb2.DrafterMessage(forecast=message))

        self._drafting.submit(
            Work(session, base, plan.ahead_length, push, plan.stop_below, verified=block.tokens)
        )

    def _span(self, plan: drafting_pb2.Plan, received: int | None = None) -> Span:
        """A plan's span; received: when the plan came, in ns, None for now."""
        if not plan.block_length or plan.traceparent.endswith(_NOT_SAMPLED):
            return INVALID_SPAN
        identity = self._replica.identity
        attributes: dict[str, str | int] = {
            names.DRAFTER_MODEL: identity.model,
            names.DRAFTER_KIND: identity.kind,
            names.DRAFTER_REPLICA: identity.replica,
            names.PLAN_LENGTH: plan.block_length,
            names.DRAFT_AHEAD: plan.held,
        }
        if plan.width > 1:
            attributes[names.PLAN_WIDTH] = plan.width
        return self._tracer.start_span(
            names.SPAN_DRAFT,
            context=trace_context.extract(plan.traceparent),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=received,
        )

    def _answer(self, plan: drafting_pb2.Plan, session: Session, span: Span, drafted: Drafted) -> None:
        error = drafted.error
        if drafted.block is not None:
            try:
                block = block_reply(plan, self._replica.incarnation, session.spec, drafted.block)
            except ValueError as misfit:
                error = misfit
            else:
                span.set_attribute(names.DRAFT_TOKENS, len(block.ids))
                block.draft_time_ns = drafted.elapsed_ns
                block.traceparent = trace_context.inject(span)
                self._send(drafting_pb2.DrafterMessage(block=block))
                self._go_on(plan, session, drafted.block)
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR))
            self._fault(drafting_pb2.FAULT_CODE_DRAFTER_FAILED, _described(error), plan)
        span.end()

    def _fault(
        self,
        code: drafting_pb2.FaultCode,
        detail: str,
        message: drafting_pb2.Open | drafting_pb2.Plan | drafting_pb2.Close,
    ) -> None:
        self._send(drafting_pb2.DrafterMessage(fault=fault_reply(code, detail, message)))

    def _release(self, session: Session | None) -> None:
        if session is not None:
            self._drafting.close(session)

    def _send(self, message: drafting_pb2.DrafterMessage) -> None:
        if not self._ended:
            self._outbox.put(message)

    async def _write(self) -> None:
        while True:
            response = drafting_pb2.DraftResponse(messages=await self._outbox.take())
            try:
                await self._context.write(response)
            except _BROKEN:
                # The verifier is gone; the reader notices as well and ends the stream.
                return


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
