"""A fixed block length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.planner import Frontier, History
from cluster.speculation.messages import BlockPlan


@dataclass(frozen=True, slots=True)
class FixedPlanner:
    """Plans `length` drafts a round, fewer where the request ends sooner; admits in turn."""

    length: int

    def plan(self, history: History) -> BlockPlan:
        # The round emits one token beyond its drafts.
        return BlockPlan(length=max(0, min(self.length, history.remaining - 1)))

    def admit(self, frontiers: Sequence[Frontier], budget: int) -> list[int]:
        """Gives every sequence its first row before any its second, and so on."""
        rows = [0] * len(frontiers)
        open_sequences = list(range(len(frontiers)))
        while open_sequences and budget > 0:
            for index in list(open_sequences):
                if budget == 0:
                    break
                if frontiers[index].next_max_q is None:
                    open_sequences.remove(index)
                    continue
                frontiers[index].admit()
                rows[index] += 1
                budget -= 1
        return rows
