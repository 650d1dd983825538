"""A collector for tests: receives OTLP over gRPC and keeps the spans as plain records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """As in cluster.telemetry.records.SpanRecord, but read off the wire; resource: all its attributes."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[ReceivedEvent, ...]
    status: str
    description: str
    scope: str
    resource: dict[str, Any]


@dataclass
class OtlpReceiver(TraceServiceServicer):
    """endpoint: for OTEL_EXPORTER_OTLP_ENDPOINT; metadata: of each export; onward: are given each export."""

    endpoint: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    onward: list[Callable[[ExportTraceServiceRequest], object]] = field(default_factory=list)

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext):  # noqa: N802
        with self.arrived:
            self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
            self.spans.extend(_received(request))
            self.arrived.notify_all()
        for sent_on in self.onward:
            sent_on(request)
        return ExportTraceServiceResponse()

    def wait_for(self, enough: Callable[[list[ReceivedSpan]], bool], timeout: float = 10.0) -> None:
        """Returns as soon as the spans suffice; raises AssertionError with what is there when they do not."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: enough(self.spans), timeout):
                raise AssertionError(f"spans received: {sorted(span.name for span in self.spans)}")

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of one trace, by start."""
        with self.arrived:
            return sorted(
                (span for span in self.spans if span.trace_id == trace_id), key=lambda s: s.start_ns
            )


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """A receiver on a free port of this machine."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def _received(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            for span in scoped.spans:
                yield ReceivedSpan(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_span_id=span.parent_span_id.hex(),
                    name=span.name,
                    kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    events=tuple(
                        ReceivedEvent(event.name, _attributes(event.attributes)) for event in span.events
                    ),
                    status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
                    description=span.status.message,
                    scope=scoped.scope.name,
                    resource=resource,
                )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind) if kind else None
