"""Patience with a collector that is down."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_LONGEST_S = 30.0


class Patient(SpanExporter):
    """After a batch that could not be exported the next one waits, longer each time, on the exporting thread.

    The SDK by itself would encode a batch anew several times in ten seconds and go on with the next at once.
    Meanwhile its queue keeps the last spans, and whoever makes spans waits for nothing.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failures = 0
        self._hurried = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._failures = 0
        else:
            self._failures += 1
            self._hurried.wait(min(2.0**self._failures, _LONGEST_S))
        return result

    def hurry(self) -> None:
        """What is left is exported now or never."""
        self._hurried.set()

    def shutdown(self) -> None:
        self.hurry()
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
