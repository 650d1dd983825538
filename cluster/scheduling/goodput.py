"""The block length that gives most tokens a second, none included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.acceptance import outlook
from cluster.scheduling.allocation import by_survival
from cluster.scheduling.hiding import ahead
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier
from cluster.scheduling.rates import promises
from cluster.speculation.messages import BlockPlan

# A request that decodes plainly drafts again only if that promises this much more, and tries whether it
# would after so many rounds, with so many drafts.
_RETURN = 1.05
_TRIAL_AFTER, _TRIAL = 96, 4


@dataclass(frozen=True, slots=True)
class GoodputPlanner:
    """Accepted length over the time of a round, both as measured (after SmartSpec, arXiv 2406.14066).

    least, most: bounds of a block's length; from least 0 a request may decode plainly; stop_below: max q
    before which a block ends; hides: whether waits are hidden (docs/scheduling.md).
    """

    most: int
    least: int = 0
    stop_below: float = 0.0
    hides: bool = False

    def plan(self, history: History) -> BlockPlan:
        most = min(self.most, history.remaining - 1)
        if most <= 0:
            return BlockPlan(length=0)
        if history.verify is None:
            return BlockPlan(most, self.stop_below)
        expected = outlook(history, most)
        promised = promises(history, expected, self.hides)
        best = max(range(min(self.least, most), most + 1), key=lambda k: promised[k].rate)
        if history.idle and promised[best].rate < _RETURN * promised[0].rate:
            trial = _TRIAL if history.idle >= _TRIAL_AFTER else 0
            best = min(max(trial, self.least), most)
        granted = ahead(history, best, self.most, expected.guessed[best]) if self.hides else 0
        return BlockPlan(best, self.stop_below, granted, promised[best].meanwhile)

    def admit(self, frontiers: Sequence[Frontier], budget: Budget) -> list[int]:
        """Until the step's goodput first drops: a search beyond that would use what its own drafts say."""
        expected = float(len(frontiers))

        def goes_on(given: int, chance: float) -> bool:
            nonlocal expected
            more = expected + chance
            if more / budget.seconds(given + 1) < expected / budget.seconds(given):
                return False
            expected = more
            return True

        return by_survival(frontiers, budget, goes_on)
