"""Finished spans as plain records, and as JSON lines: one file a process, one line a span."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

Value = str | bool | int | float | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened at one moment of a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A span of which another one is a cause, but not the parent."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A finished span. Ids are hexadecimal, parent_span_id is empty at the root of a trace.

    kind: INTERNAL, SERVER, CLIENT, PRODUCER or CONSUMER; status: UNSET, OK or ERROR.
    """

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    events: tuple[EventRecord, ...]
    links: tuple[LinkRecord, ...]
    status: str
    description: str
    service: str
    instance: str

    @property
    def milliseconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


def to_line(span: ReadableSpan) -> str:
    """One span as a line of JSON, without the line break."""
    context, parent, resource = span.get_span_context(), span.parent, span.resource.attributes
    assert context is not None
    record: dict[str, Any] = {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
        "parent_span_id": format_span_id(parent.span_id) if parent is not None else "",
        "name": span.name,
        "kind": span.kind.name,
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "attributes": dict(span.attributes or {}),
        "events": [
            {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
        "links": [
            {
                "trace_id": format_trace_id(link.context.trace_id),
                "span_id": format_span_id(link.context.span_id),
            }
            for link in span.links
        ],
        "status": {"code": span.status.status_code.name, "description": span.status.description or ""},
        "resource": {key: resource[key] for key in (SERVICE_NAME, SERVICE_INSTANCE_ID) if key in resource},
    }
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def _plain(attributes: dict[str, Any]) -> dict[str, Value]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}


def from_line(line: str) -> SpanRecord:
    """Raises ValueError or KeyError for anything but a whole line that `to_line` wrote."""
    raw = json.loads(line)
    return SpanRecord(
        trace_id=raw["trace_id"],
        span_id=raw["span_id"],
        parent_span_id=raw["parent_span_id"],
        name=raw["name"],
        kind=raw["kind"],
        start_ns=raw["start_ns"],
        end_ns=raw["end_ns"],
        attributes=_plain(raw["attributes"]),
        events=tuple(
            EventRecord(event["name"], event["time_ns"], _plain(event["attributes"]))
            for event in raw["events"]
        ),
        links=tuple(LinkRecord(link["trace_id"], link["span_id"]) for link in raw["links"]),
        status=raw["status"]["code"],
        description=raw["status"]["description"],
        service=raw["resource"].get(SERVICE_NAME, ""),
        instance=raw["resource"].get(SERVICE_INSTANCE_ID, ""),
    )


def read(directory: Path, trace_id: str) -> Iterator[SpanRecord]:
    """All spans of one trace in a directory's files, in no particular order.

    A line that is not whole is left out: a process may be writing it at this moment.
    """
    for path in sorted(directory.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if trace_id not in line or not line.endswith("\n"):
                    continue
                try:
                    span = from_line(line)
                except (ValueError, KeyError):
                    continue
                if span.trace_id == trace_id:
                    yield span


class JsonLinesExporter(SpanExporter):
    """Appends spans to `<directory>/<service>-<pid>.jsonl`. Raises OSError without such a directory."""

    def __init__(self, directory: Path, service: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._stem = re.sub(r"[^\w.-]", "_", service)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        data = "".join(to_line(span) + "\n" for span in spans).encode()
        # Opened anew for each batch: no handle outlives a fork, and the name is that of the process.
        with (self._directory / f"{self._stem}-{os.getpid()}.jsonl").open("ab", buffering=0) as file:
            file.write(data)
        return SpanExportResult.SUCCESS
