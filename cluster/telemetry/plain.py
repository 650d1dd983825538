"""Spans at a fraction of the SDK's cost, for the hundreds that a request has after its first one.

The SDK asks the sampler for each span, takes locks, and cleans every attribute. Here one thread makes the
spans, all of a trace that is known to be sampled, with attributes that are clean already. What the span
processors are given is the SDK's own ReadableSpan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.util import BoundedList
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AnyValue

Attributes = dict[str, str | int]

# No span made here has more attributes, events or links than this: higher limits need not be applied.
_MOST = 16
_UNSET = Status(StatusCode.UNSET)


class PlainSpans:
    """Makes spans like the SDK's `first`: for its processors, of its resource and scope, sampled as it was.

    The SDK's samplers decide by trace, so that the decision on one span holds for all in it.
    """

    __slots__ = ("_first", "_flags", "_ids", "_limits", "_prefix", "_processor", "_state")

    def __init__(self, tracer: sdk.Tracer, first: sdk.Span) -> None:
        context = first.get_span_context()
        self._first = first
        self._ids = tracer.id_generator
        self._processor = tracer.span_processor
        self._flags, self._state = context.trace_flags, context.trace_state
        self._prefix = f"00-{trace.format_trace_id(context.trace_id)}-"
        self._limits = _limits()

    def begin(
        self,
        name: str,
        parent: SpanContext,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes | None = None,
        at: int | None = None,
    ) -> PlainSpan:
        """attributes: are the span's from now on; at: ns since the epoch, now by default."""
        context = SpanContext(parent.trace_id, self._ids.generate_span_id(), False, self._flags, self._state)
        start = time.time_ns() if at is None else at
        return PlainSpan(self, name, context, parent, kind, {} if attributes is None else attributes, start)

    def traceparent(self, context: SpanContext) -> str:
        return f"{self._prefix}{context.span_id:016x}-{self._flags:02x}"

    def end(self, span: PlainSpan, at: int | None) -> None:
        attributes: Mapping[str, AnyValue] = span.attributes
        events, links = span.events, span.links
        if self._limits is not None:
            attributes, events, links = _within(self._limits, attributes, events, links)
        first = self._first
        self._processor.on_end(
            sdk.ReadableSpan(
                span.name,
                span.context,
                span.parent,
                first.resource,
                attributes,
                events,
                links,
                span.kind,
                status=span.status,
                start_time=span.start,
                end_time=time.time_ns() if at is None else at,
                instrumentation_scope=first.instrumentation_scope,
            )
        )


class PlainSpan:
    """An open span; nothing of it may be called after its end. The methods are those of the SDK's spans."""

    __slots__ = (
        "_spans",
        "attributes",
        "context",
        "events",
        "kind",
        "links",
        "name",
        "parent",
        "start",
        "status",
    )

    def __init__(
        self,
        spans: PlainSpans,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        kind: SpanKind,
        attributes: Attributes,
        start: int,
    ) -> None:
        self._spans = spans
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.attributes = attributes
        self.start = start
        self.events: Sequence[sdk.Event] = ()
        self.links: Sequence[Link] = ()
        self.status = _UNSET

    def get_span_context(self) -> SpanContext:
        return self.context

    def set_attributes(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def add_event(
        self, name: str, attributes: Attributes | None = None, timestamp: int | None = None
    ) -> None:
        self.events = (*self.events, sdk.Event(name, attributes, timestamp))

    def add_link(self, context: SpanContext) -> None:
        self.links = (*self.links, Link(context))

    def set_status(self, code: StatusCode, description: str) -> None:
        self.status = Status(code, description)

    def end(self, at: int | None = None) -> None:
        self._spans.end(self, at)


def _limits() -> sdk.SpanLimits | None:
    """The operator's, as the SDK reads them; None where they cannot matter here."""
    limits = sdk.SpanLimits()
    counts = (
        limits.max_span_attributes,
        limits.max_event_attributes,
        limits.max_events,
        limits.max_links,
    )
    lengths = (limits.max_span_attribute_length, limits.max_attribute_length)
    if all(count is None or count >= _MOST for count in counts) and lengths == (None, None):
        return None
    return limits


def _within(
    limits: sdk.SpanLimits,
    attributes: Mapping[str, AnyValue],
    events: Sequence[sdk.Event],
    links: Sequence[Link],
) -> tuple[BoundedAttributes, Sequence[sdk.Event], Sequence[Link]]:
    """With what exceeds the limits dropped and counted, as the SDK does it."""
    length = limits.max_attribute_length
    kept = [
        sdk.Event(
            each.name,
            BoundedAttributes(limits.max_event_attributes, each.attributes, max_value_len=length),
            each.timestamp,
        )
        for each in events
    ]
    return (
        BoundedAttributes(
            limits.max_span_attributes, attributes, max_value_len=limits.max_span_attribute_length
        ),
        BoundedList.from_seq(limits.max_events, kept),
        BoundedList.from_seq(limits.max_links, links),
    )
