"""The span of an audit, linked to the request that it is about."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Tracer

from cluster.telemetry import names
from cluster.telemetry.context import extract


def audit_span(tracer: Tracer, traceparent: str, attributes: Mapping[str, str | int | float]) -> None:
    """A trace of its own, since the request's is over; traceparent: of the request's root span."""
    audited = trace.get_current_span(extract(traceparent)).get_span_context()
    links = [Link(audited)] if audited.is_valid else []
    tracer.start_span(names.SPAN_AUDIT, Context(), attributes=attributes, links=links).end()
