"""The spans of one request inside a verifier: queue, prefill, and its rounds with their draft and verify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, Span, SpanKind, StatusCode, Tracer

from cluster.speculation.messages import DrafterIdentity
from cluster.telemetry import names
from cluster.telemetry.context import extract
from cluster.telemetry.detail import Detail
from cluster.telemetry.plain import Attributes, PlainSpan, PlainSpans

_EVERY_ROUND = Detail()

Outcome = Literal["finished", "cancelled", "failed"]

_INSIDE_ROUND = frozenset({names.SPAN_DRAFT, names.SPAN_VERIFY})


class SequenceTrace:
    """Owns the spans of one sequence; called from the engine's thread alone.

    Every call is safe at any time: what is not open is not ended, what begins again ends its predecessor,
    and after `ended` nothing happens. `at`: a moment in ns since the epoch, now by default, for a step that
    many sequences share. detail: how many rounds are shown.

    The first span is the SDK's, which settles whether the trace is sampled; all others are made like it.
    """

    __slots__ = ("_like_first", "_live", "_open", "_parent", "_rounds_left", "_traceparent", "_tracer")

    def __init__(self, tracer: Tracer, traceparent: str, detail: Detail = _EVERY_ROUND) -> None:
        self._tracer = tracer
        self._traceparent = traceparent
        self._parent = trace.get_current_span(extract(traceparent)).get_span_context()
        # Without a parent each span would begin a trace of its own.
        self._live = self._parent.is_valid
        self._rounds_left = detail.rounds(self._parent.trace_id)
        # None until there is a first one that is recorded.
        self._like_first: PlainSpans | None = None
        # In the order in which they began, so that the innermost is last.
        self._open: dict[str, sdk.Span | PlainSpan] = {}

    def queued(self, at: int | None = None) -> None:
        self._begin(names.SPAN_QUEUE, at)

    def admitted(self, at: int | None = None) -> None:
        self._end(names.SPAN_QUEUE, None, at)

    def prefill_began(self, at: int | None = None) -> None:
        self._begin(names.SPAN_PREFILL, at)

    def prefill_ended(self, tokens: int, cached: int = 0, at: int | None = None) -> None:
        """tokens: how many were computed; cached: how many had been, for another request."""
        attributes: Attributes = {
            names.PREFILL_TOKENS: tokens,
            names.PREFILL_CACHED_TOKENS: cached,
        }
        self._end(names.SPAN_PREFILL, attributes, at)

    def preempted(self, at: int | None = None) -> None:
        """The sequence gave its place to an earlier one and waits; a queue and a prefill will follow."""
        if self._open:
            self._open[next(reversed(self._open))].add_event(names.EVENT_PREEMPTED, timestamp=at)
        self._end(names.SPAN_PREFILL, None, at)
        self._begin(names.SPAN_QUEUE, at)

    def round_began(
        self, index: int, base: int, plan_length: int, plan_width: int = 1, at: int | None = None
    ) -> None:
        """base: committed tokens, the prompt included; plan_length: drafts one after another, 0 is plain
        decoding; plan_width: drafts at each position, told of trees alone."""
        if self._rounds_left == 0:
            return
        self._rounds_left -= 1
        attributes: Attributes = {
            names.ROUND_INDEX: index,
            names.ROUND_BASE: base,
            names.PLAN_LENGTH: plan_length,
        }
        if plan_width > 1:
            attributes[names.PLAN_WIDTH] = plan_width
        self._begin(names.SPAN_ROUND, at, attributes)

    def draft_began(self, at: int | None = None) -> str:
        """Returns the traceparent for the drafter, not sampled where this round is not shown."""
        if self.shows_round:
            span = self._begin(names.SPAN_DRAFT, at, kind=SpanKind.CLIENT)
            if span is not None and self._like_first is not None:
                return self._like_first.traceparent(span.get_span_context())
        return f"{self._traceparent[:-2]}00" if self._live else self._traceparent

    def draft_ended(
        self,
        drafted: int,
        drafter: DrafterIdentity | None,
        fallback: str | None,
        detail: str = "",
        at: int | None = None,
        ahead: bool = False,
    ) -> None:
        """fallback: why there is no block, None when there is one; ahead: it was drafted before the round."""
        if not self._live:
            return
        attributes: Attributes = {names.DRAFT_TOKENS: drafted, names.DRAFT_AHEAD: ahead}
        # The round says the same of its drafter, so that it can be searched for.
        shared: Attributes = {}
        if drafter is not None:
            shared[names.DRAFTER_MODEL] = drafter.model
            shared[names.DRAFTER_KIND] = drafter.kind
            shared[names.DRAFTER_REPLICA] = drafter.replica
        if fallback is not None:
            shared[names.FALLBACK_REASON] = fallback
            attributes[names.ERROR_TYPE] = fallback
            span = self._open.get(names.SPAN_DRAFT)
            if span is not None:
                span.set_status(StatusCode.ERROR, detail or fallback)
        round_span = self._open.get(names.SPAN_ROUND)
        if round_span is not None and shared:
            round_span.set_attributes(shared)
            if fallback is not None:
                event: Attributes = {names.FALLBACK_REASON: fallback, names.FALLBACK_DETAIL: detail}
                round_span.add_event(names.EVENT_FALLBACK, event, at)
        self._end(names.SPAN_DRAFT, attributes | shared, at)

    def verify_began(
        self, sequences: int, rows: int, step: Span = INVALID_SPAN, at: int | None = None
    ) -> None:
        """sequences and rows: of the whole forward pass that this round is part of; step: its span."""
        if not self.shows_round:
            return
        attributes: Attributes = {names.BATCH_SEQUENCES: sequences, names.BATCH_ROWS: rows}
        span = self._begin(names.SPAN_VERIFY, at, attributes)
        if span is not None and step.is_recording():
            span.add_link(step.get_span_context())

    def verify_ended(self, accepted: int, emitted: int, at: int | None = None) -> None:
        self._end(names.SPAN_VERIFY, {names.ACCEPTED_TOKENS: accepted, names.EMITTED_TOKENS: emitted}, at)

    def round_ended(self, law: str, drafted: int, accepted: int, emitted: int, at: int | None = None) -> None:
        """Counts as in Provenance, after discards; law: the one that the round was decided under."""
        attributes: Attributes = {
            names.VERIFICATION_MODE: law,
            names.DRAFT_TOKENS: drafted,
            names.ACCEPTED_TOKENS: accepted,
            names.EMITTED_TOKENS: emitted,
        }
        self._end(names.SPAN_ROUND, attributes, at)

    def ended(self, outcome: Outcome, reason: str = "", at: int | None = None) -> None:
        """Ends whatever is open. reason: in words."""
        for name in reversed(tuple(self._open)):
            span = self._open[name]
            if outcome == "cancelled":
                span.add_event(names.EVENT_CANCELLED, {names.CANCEL_REASON: reason}, at)
            elif outcome == "failed":
                span.add_event(names.EVENT_FAILED, {names.ERROR_REASON: reason}, at)
                span.set_status(StatusCode.ERROR, reason)
                span.set_attributes({names.ERROR_TYPE: names.ERROR_INTERNAL})
            self._end(name, None, at)
        self._live = False

    @property
    def shows_rounds(self) -> bool:
        """Whether a round is recorded, or the next one would be."""
        return self._live and (self.shows_round or self._rounds_left > 0)

    @property
    def shows_round(self) -> bool:
        """Whether a round is open and recorded."""
        return names.SPAN_ROUND in self._open

    def _begin(
        self,
        name: str,
        at: int | None,
        attributes: Attributes | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> sdk.Span | PlainSpan | None:
        if not self._live:
            return None
        self._end(name, None, at)
        around = self._open.get(names.SPAN_ROUND) if name in _INSIDE_ROUND else None
        parent = self._parent if around is None else around.get_span_context()
        span: sdk.Span | PlainSpan
        if self._like_first is None:
            context = trace.set_span_in_context(NonRecordingSpan(parent), Context())
            first = self._tracer.start_span(name, context, kind, attributes, start_time=at)
            if not isinstance(first, sdk.Span) or not isinstance(self._tracer, sdk.Tracer):
                # Not sampled, or nowhere to go.
                self._live = False
                return None
            self._like_first = PlainSpans(self._tracer, first)
            span = first
        else:
            span = self._like_first.begin(name, parent, kind, attributes, at)
        self._open[name] = span
        return span

    def _end(self, name: str, attributes: Attributes | None, at: int | None) -> None:
        span = self._open.pop(name, None)
        if span is None:
            return
        if attributes is not None:
            span.set_attributes(attributes)
        span.end(at)


def step_span(tracer: Tracer, traces: Iterable[SequenceTrace], sequences: int, rows: int) -> Span:
    """The span of one forward pass, which serves many requests and is a trace of its own; nothing is recorded
    where no trace shows its rounds. Ends with its context."""
    if not any(each.shows_rounds for each in traces):
        return INVALID_SPAN
    attributes = {names.BATCH_SEQUENCES: sequences, names.BATCH_ROWS: rows}
    return tracer.start_span(names.SPAN_STEP, Context(), attributes=attributes)
