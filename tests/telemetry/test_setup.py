import json
import logging
import os
import random
import time
from importlib import metadata

import pytest
from opentelemetry import trace

from cluster.telemetry.context import extract, inject, trace_id
from cluster.telemetry.records import LinkRecord
from cluster.telemetry.setup import TRACE_DIR, setup, shutdown
from cluster.telemetry.tree import load_spans

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# Nothing listens on this port.
NOBODY = "http://127.0.0.1:1"


def test_spans_reach_a_collector_soon_without_a_flush(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    tracer = setup("gateway", replica="gw#1")
    span = tracer.start_span("chat m", extract(CLIENT), attributes={"yes": True, "n": 3, "x": 0.5, "s": "t"})
    span.end()
    otlp_receiver.wait_for(lambda spans: len(spans) == 1, timeout=5)
    received = otlp_receiver.spans[0]
    assert received.trace_id == CLIENT.split("-")[1]
    assert received.parent_span_id == CLIENT.split("-")[2]
    assert received.attributes == {"yes": True, "n": 3, "x": 0.5, "s": "t"}
    assert received.scope == "gateway"
    assert received.resource["service.name"] == "gateway"
    assert received.resource["service.instance.id"] == "gw#1"
    assert received.resource["service.version"] == metadata.version("truedraft")


def test_the_traces_endpoint_wins_and_headers_are_sent(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOBODY)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", otlp_receiver.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k,x-tenant=a")
    setup("gateway").start_span("one").end()
    shutdown()
    assert [span.name for span in otlp_receiver.spans] == ["one"]
    assert otlp_receiver.metadata[0]["authorization"] == "Bearer k"
    assert otlp_receiver.metadata[0]["x-tenant"] == "a"


def test_the_operators_resource_wins(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm-prod")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod,service.name=other")
    setup("gateway", replica="gw#1").start_span("one").end()
    shutdown()
    resource = otlp_receiver.spans[0].resource
    assert resource["service.name"] == "llm-prod"
    assert resource["deployment.environment.name"] == "prod"
    assert resource["service.instance.id"] == "gw#1"
    assert otlp_receiver.spans[0].scope == "gateway"


def test_setup_is_idempotent_and_services_of_one_process_stay_apart(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    before = trace.get_tracer_provider()
    gateway, verifier = setup("gateway"), setup("verifier", replica="v#1")
    assert setup("gateway") is gateway
    assert setup("verifier", replica="v#1") is verifier
    root = gateway.start_span("root")
    verifier.start_span("queue", extract(inject(root))).end()
    root.end()
    shutdown()
    services = {span.name: span.resource["service.name"] for span in otlp_receiver.trace(trace_id(root))}
    assert services == {"root": "gateway", "queue": "verifier"}
    assert trace.get_tracer_provider() is before


def test_spans_are_appended_as_json_lines(tmp_path, monkeypatch):
    directory = tmp_path / "made" / "here"
    monkeypatch.setenv(TRACE_DIR, str(directory))
    tracer = setup("gate/way", replica="gw#1")
    cause = tracer.start_span("cause")
    links = [trace.Link(cause.get_span_context())]
    root = tracer.start_span("root", extract(CLIENT), trace.SpanKind.SERVER, {"list": ["a"]}, links, 1_000)
    root.add_event("fallback", {"reason": "größer"}, 1_500)
    root.set_status(trace.StatusCode.ERROR, "gone")
    root.end(2_000)
    cause.end()
    shutdown()
    (file,) = directory.iterdir()
    assert file.name.startswith("gate_way-")
    # A line that is still being written.
    with file.open("a") as half:
        half.write('{"trace_id":"' + trace_id(root))
    (record,) = load_spans(directory, trace_id(root))
    assert record.parent_span_id == CLIENT.split("-")[2]
    assert (record.name, record.kind, record.start_ns, record.end_ns) == ("root", "SERVER", 1_000, 2_000)
    assert record.attributes == {"list": ("a",)}
    assert record.links == (LinkRecord(*inject(cause).split("-")[1:3]),)
    assert [(event.name, event.time_ns, event.attributes) for event in record.events] == [
        ("fallback", 1_500, {"reason": "größer"})
    ]
    assert (record.status, record.description) == ("ERROR", "gone")
    assert (record.service, record.instance) == ("gate/way", "gw#1")
    assert len(file.read_text(encoding="utf-8").splitlines()) == 3


def test_file_and_collector_together(otlp_receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    monkeypatch.setenv(TRACE_DIR, str(tmp_path))
    span = setup("gateway").start_span("one")
    span.end()
    shutdown()
    assert len(otlp_receiver.spans) == 1
    assert len(load_spans(tmp_path, trace_id(span))) == 1


def test_without_a_destination_ids_exist_and_nothing_is_recorded():
    tracer = setup("gateway")
    alone, child = tracer.start_span("alone"), tracer.start_span("child", extract(CLIENT))
    assert not alone.is_recording()
    assert not child.is_recording()
    assert len(trace_id(alone)) == 32
    assert trace_id(child) == CLIENT.split("-")[1]
    assert inject(child).split("-")[1] == CLIENT.split("-")[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
    ],
)
def test_switched_off(name, value, otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    monkeypatch.setenv(name, value)
    span = setup("gateway").start_span("one", extract(CLIENT))
    assert not span.is_recording()
    assert trace_id(span) == CLIENT.split("-")[1]
    span.end()
    shutdown()
    assert otlp_receiver.spans == []


def test_sampling_is_the_parents_decision(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    tracer = setup("gateway")
    assert not tracer.start_span("ours").is_recording()
    assert tracer.start_span("sampled", extract(CLIENT)).is_recording()
    assert not tracer.start_span("not", extract(CLIENT[:-2] + "00")).is_recording()


def test_a_collector_that_is_down_costs_nothing_but_one_line(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOBODY)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    tracer = setup("gateway")
    began = time.monotonic()
    # More than the queue holds.
    for _ in range(3000):
        tracer.start_span("one").end()
    assert time.monotonic() - began < 5
    began = time.monotonic()
    shutdown(timeout=0.3)
    assert time.monotonic() - began < 2
    theirs = [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert 1 <= len(theirs) <= 2  # one of the exporter, one of the queue
    assert not any(record.exc_info for record in caplog.records)


def test_a_failing_file_raises_nothing_and_logs_no_stack(tmp_path, monkeypatch, caplog):
    directory = tmp_path / "traces"
    monkeypatch.setenv(TRACE_DIR, str(directory))
    tracer = setup("gateway")
    directory.rmdir()
    tracer.start_span("one").end()
    shutdown()
    (record,) = caplog.records
    assert "FileNotFoundError" in record.getMessage()
    assert record.exc_info is None
    assert not directory.exists()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "zip"),
        (TRACE_DIR, "/dev/null/traces", "/dev/null/traces"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_said(name, value, said, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOBODY)
    monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        assert trace_id(setup("gateway").start_span("one"))
    assert said in caplog.text


def test_ids_do_not_follow_a_seeded_process():
    tracer = setup("gateway")
    ids = []
    for _ in range(2):
        random.seed(0)
        ids.append(trace_id(tracer.start_span("one")))
    assert ids[0] != ids[1]


def test_a_forked_process_gives_out_other_ids():
    tracer = setup("gateway")
    tracer.start_span("so that ids are at hand")
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, trace_id(tracer.start_span("child")).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        others = pipe.read()
    assert len(others) == 32
    assert others != trace_id(tracer.start_span("parent"))


def test_a_line_is_plain_json(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACE_DIR, str(tmp_path))
    setup("gateway").start_span("one").end()
    shutdown()
    (file,) = tmp_path.iterdir()
    assert set(json.loads(file.read_text())) == {
        "trace_id",
        "span_id",
        "parent_span_id",
        "name",
        "kind",
        "start_ns",
        "end_ns",
        "attributes",
        "events",
        "links",
        "status",
        "resource",
    }
