import logging
import os

import pytest

from cluster.telemetry.setup import TRACE_DIR, shutdown
from tests.telemetry.otlp_receiver import receiving
from tests.telemetry.sequences import Recorder


@pytest.fixture(autouse=True)
def clean_tracing(monkeypatch):
    """No variables of the developer's, no tracer and no log filter beyond the test."""
    for name in [*(name for name in os.environ if name.startswith("OTEL_")), TRACE_DIR]:
        monkeypatch.delenv(name, raising=False)
    manager = logging.Logger.manager
    yield
    shutdown()
    for name, logger in manager.loggerDict.items():
        if name.startswith("opentelemetry") and isinstance(logger, logging.Logger):
            logger.filters = [each for each in logger.filters if each.__module__ != "cluster.telemetry.setup"]


@pytest.fixture
def otlp_receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture(params=[False, True], ids=["first", "later"])
def recorder(request):
    """Once with a sequence that had no span before, and once with one that had."""
    made = Recorder()
    if request.param:
        made.trace.queued()
        made.trace.admitted()
        made.exporter.clear()
    return made
