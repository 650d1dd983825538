"""The quick encoder says of every span what the SDK's says."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, StatusCode

from cluster.telemetry import encoding
from cluster.telemetry.context import extract
from cluster.telemetry.encoding import encode
from cluster.telemetry.setup import setup, shutdown

PARENT = extract("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
STATEFUL = extract("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


class Made:
    """A tracer whose spans are kept."""

    def __init__(self, name="v", limits=None):
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource.create({"service.name": name}), span_limits=limits)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("scope", "1.0")

    def spans(self):
        return list(self._exporter.get_finished_spans())


def several(tracer):
    """Spans of every sort, each after one that is encoded together with its resource."""
    tracer.start_span("root").end()
    tracer.start_span("child", PARENT).end()
    for value in (1, True, 1.0, 0, False, 0.0, -0.0, "1", "größer", "", (1, 2), ["a"], 2**63, -(2**63)):
        tracer.start_span("one value", PARENT, SpanKind.CLIENT, {"same key": value, "other": 1}).end()
    tracer.start_span("stateful", STATEFUL).end()
    cause = tracer.start_span("cause", PARENT, SpanKind.SERVER)
    remote = next(iter(PARENT.values())).get_span_context()
    for links in ([Link(cause.get_span_context()), Link(remote)], [Link(remote, {"why": "x"})]):
        tracer.start_span("linked", PARENT, links=links).end()
    cause.add_event("fallback", {"reason": "deadline"}, 5)
    cause.set_status(StatusCode.ERROR, "gone")
    cause.end()
    fine = tracer.start_span("fine", PARENT)
    fine.set_status(StatusCode.OK)
    fine.end()


def test_every_span_is_encoded_as_the_sdk_does_it():
    made = Made()
    several(made.tracer)
    assert encode(made.spans()) == encode_spans(made.spans())
    # And when its attributes are known already.
    assert encode(made.spans()) == encode_spans(made.spans())
    names = [span.name for span in encode(made.spans()).resource_spans[0].scope_spans[0].spans]
    assert names == [span.name for span in made.spans()]


@pytest.mark.parametrize(
    "limits",
    [
        SpanLimits(max_span_attributes=1),
        SpanLimits(max_links=1),
        SpanLimits(max_events=0),
        SpanLimits(max_span_attribute_length=2),
    ],
    ids=["attributes", "links", "events", "length"],
)
def test_what_limits_cost_a_span_is_told(limits):
    made = Made(limits=limits)
    several(made.tracer)
    assert encode(made.spans()) == encode_spans(made.spans())


def test_resources_stay_apart():
    one, other = Made("one"), Made("other")
    several(one.tracer)
    several(other.tracer)
    mixed = [*one.spans(), *other.spans()]
    assert encode(mixed) == encode_spans(mixed)
    assert len(encode(mixed).resource_spans) == 2
    assert encode([]) == encode_spans([])


def test_the_collector_is_sent_what_it_encodes(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    encoded = []
    monkeypatch.setattr(encoding, "encode", lambda spans: encoded.append(encode(spans)) or encoded[-1])
    several(setup("verifier"))
    shutdown()
    sent = [s.name for each in encoded for s in each.resource_spans[0].scope_spans[0].spans]
    assert [span.name for span in otlp_receiver.spans] == sent
    assert sent.count("one value") == 14
