"""Lines of JSON: one a record, with the trace that it belongs to."""

import json
import logging

import pytest

from cluster.telemetry.logs import JsonFormatter, log_as_json


def line(**extra):
    record = logging.LogRecord("verifier_service.x", logging.ERROR, "x.py", 1, "a %s step", ("bad",), None)
    for name, value in extra.items():
        setattr(record, name, value)
    text = JsonFormatter("truedraft-verifier", "v#1").format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_says_what_where_and_when():
    content = line()
    assert content.pop("time").endswith("+00:00")
    assert content == {
        "level": "error",
        "service": "truedraft-verifier",
        "replica": "v#1",
        "logger": "verifier_service.x",
        "message": "a bad step",
    }


def test_a_line_of_a_request_has_its_trace():
    assert line(trace_id="ab" * 16)["trace_id"] == "ab" * 16


def test_an_exception_stays_on_its_line():
    try:
        raise ValueError("of two\nlines")
    except ValueError as error:
        content = line(exc_info=(ValueError, error, error.__traceback__))
    assert "of two\nlines" in content["exception"]


@pytest.fixture
def loggers():
    kept = {}
    for name in ("cluster", "drafter_service", "verifier_service"):
        logger = logging.getLogger(name)
        kept[logger] = (list(logger.handlers), logger.level, logger.propagate)
    yield kept
    for logger, (handlers, level, propagate) in kept.items():
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_every_package_logs_so_and_once(loggers, capsys):
    for _ in range(2):
        log_as_json("truedraft-gateway", "g#1")
    logging.getLogger("cluster.gateway").warning("once")
    [text] = capsys.readouterr().err.splitlines()
    assert json.loads(text)["message"] == "once"
