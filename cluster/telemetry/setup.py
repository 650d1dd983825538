"""Sets up tracing: a tracer provider of our own for each service in a process.

The global provider is left alone, because Serve sets it when its own tracing is on. Where spans go is
decided by OpenTelemetry's standard variables and TRUEDRAFT_TRACE_DIR, see docs/tracing.md. Nothing here
raises or blocks on account of a collector: spans are exported from a thread, and dropped if they cannot be.
"""

from __future__ import annotations

import atexit
import logging
import os
import struct
import threading
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_SDK_DISABLED,
)
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Tracer

from cluster.telemetry.encoding import QuickExporter
from cluster.telemetry.patience import Patient
from cluster.telemetry.records import JsonLinesExporter

TRACE_DIR = "TRUEDRAFT_TRACE_DIR"

_log = logging.getLogger(__name__)
# Spans appear within a second of their end; the SDK's own default is five.
_SCHEDULE_DELAY_MS = 500.0
_QUIET_SECONDS = 60.0
_WORDS = struct.Struct("=512Q")
_NOISY = ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.sdk._shared_internal")


class _Quiet(logging.Filter):
    """Lets one record a minute through, without its stack trace: a collector that is down says so once."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -_QUIET_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._last < _QUIET_SECONDS:
            return False
        self._last = now
        if record.exc_info:
            record.msg = f"{record.getMessage()} ({record.exc_info[1]!r})"
            record.args = record.exc_info = None
        return True


class _Ids(IdGenerator):
    """Ids from the system's randomness: the SDK's come from `random`, which anything may have seeded.

    Many are drawn at once, since asking the system lets other threads have the interpreter each time.
    """

    def __init__(self) -> None:
        self._ready: list[int] = []
        # Else a child would give out the same ones as its parent.
        os.register_at_fork(after_in_child=self._ready.clear)

    def generate_span_id(self) -> int:
        return self._draw() or 1

    def generate_trace_id(self) -> int:
        return self._draw() << 64 | self._draw() or 1

    def is_trace_id_random(self) -> bool:
        return True

    def _draw(self) -> int:
        """64 bits. From any thread: single operations on a list are atomic."""
        try:
            return self._ready.pop()
        except IndexError:
            first, *others = _WORDS.unpack(os.urandom(_WORDS.size))
            self._ready.extend(others)
            return int(first)


@dataclass(frozen=True, slots=True)
class _Tracing:
    provider: TracerProvider
    tracer: Tracer
    exporters: tuple[SpanExporter, ...]


_lock = threading.Lock()
_running: dict[tuple[str, str], _Tracing] = {}


def setup(service_name: str, *, replica: str = "") -> Tracer:
    """The tracer of a service's replica in this process; the same one when called again.

    Without a destination its spans have ids and propagate them, but record nothing and cost little.
    """
    with _lock:
        tracing = _running.get((service_name, replica))
        if tracing is None:
            if not _running:
                atexit.register(shutdown)
            tracing = _running[service_name, replica] = _start(service_name, replica)
        return tracing.tracer


def shutdown(timeout: float = 2.0) -> None:
    """Exports what is left, for at most `timeout` seconds, and ends all tracers of this process."""
    with _lock:
        ending = list(_running.values())
        _running.clear()
    atexit.unregister(shutdown)

    for tracing in ending:
        for exporter in tracing.exporters:
            if isinstance(exporter, Patient):
                exporter.hurry()

    def close() -> None:
        for tracing in ending:
            tracing.provider.shutdown()

    # The SDK would wait half a minute for a collector that does not answer.
    closing = threading.Thread(target=close, name="truedraft-telemetry-shutdown", daemon=True)
    closing.start()
    closing.join(timeout)
    if closing.is_alive():
        _log.warning("traces not exported within %g s are dropped", timeout)
        for tracing in ending:
            for exporter in tracing.exporters:
                exporter.shutdown()
        # Returns soon: no exporter takes anything any more.
        closing.join(timeout)


def _start(service_name: str, replica: str) -> _Tracing:
    resource = service_resource(service_name, replica)
    exporters = [] if _flag(OTEL_SDK_DISABLED) else _exporters(str(resource.attributes[SERVICE_NAME]))
    provider = TracerProvider(
        # None: by OTEL_TRACES_SAMPLER.
        sampler=None if exporters else ALWAYS_OFF,
        resource=resource,
        id_generator=_Ids(),
        shutdown_on_exit=False,
    )
    delay = None if os.environ.get(OTEL_BSP_SCHEDULE_DELAY) else _SCHEDULE_DELAY_MS
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
    version = str(resource.attributes[SERVICE_VERSION])
    return _Tracing(provider, provider.get_tracer(service_name, version), tuple(exporters))


def service_resource(service_name: str, replica: str) -> Resource:
    """What spans and metrics of a replica say of where they come from."""
    attributes = {SERVICE_NAME: service_name, SERVICE_VERSION: _version()}
    if replica:
        attributes[SERVICE_INSTANCE_ID] = replica
    # Merged a second time so that the operator's variables win over our names.
    return Resource.create(attributes).merge(OTELResourceDetector().detect())


def _version() -> str:
    try:
        return metadata.version("truedraft")
    except metadata.PackageNotFoundError:
        return "unknown"


def _exporters(service: str) -> list[SpanExporter]:
    exporters: list[SpanExporter] = []
    # The file first: shutting down goes in order, and a file is never slow.
    if directory := os.environ.get(TRACE_DIR):
        try:
            exporters.append(JsonLinesExporter(Path(directory), service))
        except OSError as error:
            _log.warning("no traces in %s: %s", directory, error)
    if _wants_otlp():
        try:
            exporters.append(Patient(QuickExporter()))
        except Exception as error:  # the SDK raises bare ones for values that it cannot read
            _log.warning("no traces over OTLP, check the OTEL_EXPORTER_OTLP_* variables: %s", error)
    if exporters:
        quieten()
    return exporters


def quieten() -> None:
    """A collector that is down says so once a minute; before anything is exported."""
    for name in _NOISY:
        logger = logging.getLogger(name)
        if not any(isinstance(each, _Quiet) for each in logger.filters):
            logger.addFilter(_Quiet())


def _wants_otlp() -> bool:
    chosen = [name.strip() for name in os.environ.get(OTEL_TRACES_EXPORTER, "").split(",") if name.strip()]
    if unknown := set(chosen) - {"otlp", "none"}:
        _log.warning("%s: only otlp and none are known, not %s", OTEL_TRACES_EXPORTER, ", ".join(unknown))
    protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or os.environ.get(
        OTEL_EXPORTER_OTLP_PROTOCOL
    )
    wanted = "otlp" in chosen or (
        not chosen
        and any(
            os.environ.get(name) for name in (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
        )
    )
    if wanted and protocol not in (None, "", "grpc"):
        _log.warning("traces are exported over gRPC, %s is not supported", protocol)
    return wanted


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() == "true"
