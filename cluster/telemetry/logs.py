"""Logs as lines of JSON on standard error, wherever that is collected: of one form in every service."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_PACKAGES = ("cluster", "drafter_service", "verifier_service")


def log_as_json(service: str, replica: str, level: int = logging.INFO) -> None:
    """For a process of the cluster, once; what other libraries log is left to Ray."""
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        if not any(isinstance(handler.formatter, JsonFormatter) for handler in logger.handlers):
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(JsonFormatter(service, replica))
            logger.addHandler(handler)
            logger.setLevel(level)
            logger.propagate = False


class JsonFormatter(logging.Formatter):
    """A record logged with extra={"trace_id": …} says so; an exception comes with its stack trace."""

    def __init__(self, service: str, replica: str) -> None:
        super().__init__()
        self._about = {"service": service, "replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._about,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace_id := getattr(record, "trace_id", ""):
            line["trace_id"] = trace_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
