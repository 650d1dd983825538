"""A client's own span around a request, where its spans have somewhere to go."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind

from cluster.telemetry import names
from cluster.telemetry.context import inject
from cluster.telemetry.setup import setup, shutdown


@contextmanager
def client_span() -> Iterator[str]:
    """The traceparent to send along. Without a destination of our own it is one that is sampled all the same,
    so that the service's spans can be found by its id."""
    span = setup("truedraft-client").start_span(names.SPAN_GENERATE, kind=SpanKind.CLIENT)
    try:
        if span.is_recording():
            yield inject(span)
        else:
            yield f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    finally:
        span.end()
        shutdown()
