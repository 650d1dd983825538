"""Labels of metrics: few values each, whatever clients send."""

from __future__ import annotations

from collections.abc import Iterable

OTHER = "other"


class Domains:
    """The domains that are told apart; every other one is OTHER, and so is none at all."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._allowed = frozenset(allowed)

    def label(self, domain: str) -> str:
        return domain if domain in self._allowed else OTHER
