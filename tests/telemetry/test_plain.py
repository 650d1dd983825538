"""A plain span is what the SDK would have made of the same calls."""

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cluster.telemetry.context import extract, inject
from cluster.telemetry.plain import PlainSpans

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LIMITS = (
    {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5"},
    {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2"},
    {"OTEL_ATTRIBUTE_COUNT_LIMIT": "1"},
    {"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1"},
    {"OTEL_SPAN_EVENT_COUNT_LIMIT": "1"},
    {"OTEL_SPAN_LINK_COUNT_LIMIT": "0"},
)


@pytest.mark.parametrize("limits", [{}, *LIMITS], ids=lambda limits: "".join(limits) or "none")
def test_a_plain_span_is_the_sdks(limits, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setenv(name, value)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("verifier", "1.0")
    context = extract(CLIENT)
    first = tracer.start_span("queue", context)
    plain = PlainSpans(tracer, first)
    spans = (
        tracer.start_span("round", context, SpanKind.CLIENT, {"index": 3}, start_time=1_000),
        plain.begin(
            "round",
            trace.get_current_span(context).get_span_context(),
            SpanKind.CLIENT,
            {"index": 3},
            1_000,
        ),
    )
    assert plain.traceparent(first.get_span_context()) == inject(first)
    for span in spans:
        span.set_attributes({"mode": "coupled", "tokens": 4})
        span.set_attributes({"tokens": 5})
        span.add_event("preempted", timestamp=1_500)
        span.add_event("fallback", {"reason": "deadline", "detail": "no block within 40 ms"}, 1_600)
        span.add_link(first.get_span_context())
        span.set_status(StatusCode.ERROR, "no block")
        span.end(2_000)
    theirs, ours = exporter.get_finished_spans()
    assert theirs.context.span_id != ours.context.span_id
    theirs, ours = encode_spans([theirs]), encode_spans([ours])
    for encoded in (theirs, ours):
        encoded.resource_spans[0].scope_spans[0].spans[0].span_id = b""
    assert ours == theirs
