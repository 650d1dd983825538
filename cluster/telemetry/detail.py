"""How much of a request its trace shows: the request alone, or its rounds as well."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

DETAIL = "TRUEDRAFT_TRACE_DETAIL"
MAX_ROUNDS = "TRUEDRAFT_TRACE_ROUNDS"
SHARE = "TRUEDRAFT_TRACE_SHARE"

_log = logging.getLogger(__name__)
_LOW_BITS = 32

T = TypeVar("T")


class Level(StrEnum):
    """Without rounds; with them; with them for a share of traces."""

    REQUEST = "request"
    ROUND = "round"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class Detail:
    """max_rounds: shown of one trace, the first ones; share: of traces that show rounds, at Level.SAMPLED."""

    level: Level = Level.ROUND
    max_rounds: int = 256
    share: float = 0.05

    @staticmethod
    def from_environment() -> Detail:
        """A value that cannot be read is told of in the log and left at its default."""
        default = Detail()
        return Detail(
            level=_read(DETAIL, Level, default.level),
            max_rounds=max(0, _read(MAX_ROUNDS, int, default.max_rounds)),
            share=_read(SHARE, float, default.share),
        )

    def rounds(self, trace_id: int) -> int:
        """How many rounds of this trace are shown; every process answers the same."""
        if self.level is Level.REQUEST:
            return 0
        drawn = (trace_id & (1 << _LOW_BITS) - 1) / (1 << _LOW_BITS)
        return self.max_rounds if self.level is Level.ROUND or drawn < self.share else 0


def _read(name: str, parse: Callable[[str], T], default: T) -> T:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    try:
        return parse(value)
    except ValueError:
        _log.warning("%s: %r cannot be used, %s is taken", name, value, default)
        return default
