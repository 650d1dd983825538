"""Who takes part, and what is measured of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. tokens: how many it has; first: seconds from the request to its first text, None where it
    comes as a whole; seconds: to its end."""

    tokens: int
    first: float | None
    seconds: float


class Peer(Protocol):
    """Answers prompts greedily, as chats of one turn."""

    @property
    def name(self) -> str: ...

    @property
    def most(self) -> int:
        """Prompts that it takes at a time, 0 for any number."""

    def ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        """All at once; `tokens`: the most of each, which an answer's own end may undercut. Raises
        RuntimeError when one fails."""

    def memory(self) -> int:
        """Bytes that its processes hold, those shared with others counted in full."""


def family(pid: int) -> frozenset[int]:
    """A process and its descendants; empty when it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return frozenset(each.pid for each in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return frozenset()


def resident(pids: Iterable[int]) -> int:
    """Bytes of those processes that have not ended."""
    import psutil

    total = 0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            total += psutil.Process(pid).memory_info().rss
    return total
