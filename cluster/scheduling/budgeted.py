"""One budget of verify rows for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cluster.scheduling.allocation import by_survival
from cluster.scheduling.fixed import FixedPlanner
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier
from cluster.speculation.messages import BlockPlan


@dataclass(frozen=True, slots=True)
class BudgetedPlanner:
    """Has blocks of `length` drafted and verifies what the batch as a whole can afford.

    How much that is follows from the chances of drafts that are two steps old, so that it may be searched for
    freely; who gets it follows from the present chances, one position at a time.
    stop_below, hides, width: as in FixedPlanner.
    """

    length: int
    stop_below: float = 0.0
    hides: bool = False
    width: int = 1

    def plan(self, history: History) -> BlockPlan:
        return FixedPlanner(self.length, self.stop_below, self.hides, self.width).plan(history)

    def admit(self, frontiers: Sequence[Frontier], budget: Budget) -> list[int]:
        rows = min(budget.rows, self._capacity(len(frontiers), budget))
        return by_survival(frontiers, replace(budget, rows=rows), lambda given, chance: True)

    @staticmethod
    def _capacity(sequences: int, budget: Budget) -> int:
        """Drafts that would have given most tokens a second; all of them if that is not known."""
        if not budget.survivals:
            return budget.rows
        expected, goodputs = float(sequences), [sequences / budget.seconds(0)]
        for drafts, chance in enumerate(budget.survivals[: budget.rows], start=1):
            expected += chance
            goodputs.append(expected / budget.seconds(drafts))
        return max(range(len(goodputs)), key=goodputs.__getitem__)
