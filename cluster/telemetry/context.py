"""W3C trace context in and out of metadata and messages; the current context of a process plays no part."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACEPARENT = "traceparent"
_TRACESTATE = "tracestate"


def extract(traceparent: str, tracestate: str = "") -> Context:
    """The context of a remote parent; an empty or malformed traceparent gives the empty context."""
    carrier = {_TRACEPARENT: traceparent}
    if tracestate:
        carrier[_TRACESTATE] = tracestate
    # An own empty context: without it the propagator would start from whatever span is current here,
    # such as one of Serve's.
    return _PROPAGATOR.extract(carrier, Context())


def extract_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Context:
    """The context of a remote parent from gRPC metadata or HTTP headers, names in any case."""
    fields = {name.lower(): value for name, value in metadata if isinstance(value, str)}
    return extract(fields.get(_TRACEPARENT, ""), fields.get(_TRACESTATE, ""))


def inject(span: Span) -> str:
    """The traceparent that makes a remote span a child of this one; empty for a span without ids."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get(_TRACEPARENT, "")


def trace_id(span: Span) -> str:
    """32 hexadecimal digits, or empty for a span without ids."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""
