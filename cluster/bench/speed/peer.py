"""Who takes part, and what is measured of an answer."""

from __future__ import annotations

from collections.abc import Sequence
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


def resident(pid: int) -> int:
    """Bytes of a process and its descendants."""
    import psutil

    total = 0
    try:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total
