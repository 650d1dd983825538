"""A fixed block length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.acceptance import outlook
from cluster.scheduling.allocation import by_turns
from cluster.scheduling.hiding import ahead
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier
from cluster.scheduling.rates import promise
from cluster.speculation.messages import BlockPlan


@dataclass(frozen=True, slots=True)
class FixedPlanner:
    """Plans `length` drafts a round, fewer where the request ends sooner; admits in turn.

    stop_below: max q before which a block ends; hides: whether waits are hidden (docs/scheduling.md); width:
    drafts at each position.
    """

    length: int
    stop_below: float = 0.0
    hides: bool = False
    width: int = 1

    def plan(self, history: History) -> BlockPlan:
        # The round emits one token beyond its drafts.
        length = max(0, min(self.length, history.remaining - 1))
        if not self.hides or not length or history.verify is None:
            return BlockPlan(length, self.stop_below, width=self.width)
        promised = promise(history, outlook(history, length, self.width), length, self.hides)
        granted = ahead(history, length, self.length) if self.width == 1 else 0
        return BlockPlan(length, self.stop_below, granted, promised.meanwhile, self.width)

    def admit(self, frontiers: Sequence[Frontier], budget: Budget) -> list[int]:
        return by_turns(frontiers, budget.rows)
