"""The block length that gives most tokens a second, none included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.acceptance import Outlook, outlook
from cluster.scheduling.allocation import by_survival
from cluster.scheduling.hiding import ahead
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier
from cluster.speculation.messages import BlockPlan

# A request that decodes plainly drafts again only if that promises this much more, and tries whether it
# would after so many rounds, with so many drafts.
_RETURN = 1.05
_TRIAL_AFTER, _TRIAL = 96, 4


@dataclass(frozen=True, slots=True)
class GoodputPlanner:
    """Accepted length over the time of a round, both as measured (after SmartSpec, arXiv 2406.14066).

    least, most: bounds of a block's length; from least 0 a request may decode plainly; stop_below: max q
    before which a block ends; hides: whether waits are hidden by drafting ahead.
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
        rates = self._rates(history, expected)
        best = max(range(min(self.least, most), most + 1), key=rates.__getitem__)
        if history.idle and rates[best] < _RETURN * rates[0]:
            trial = _TRIAL if history.idle >= _TRIAL_AFTER else 0
            best = min(max(trial, self.least), most)
        granted = ahead(history, best, expected.guessed[best]) if self.hides else 0
        return BlockPlan(best, self.stop_below, granted)

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

    def _rates(self, history: History, expected: Outlook) -> list[float]:
        """Tokens a second by block length: the request's own, which waits for its block, and those of others
        in the same steps, which its rows delay."""
        assert history.verify is not None
        rates = []
        for k, tokens in enumerate(expected.tokens):
            rows = history.other_rows + 1.0 + expected.rows[k]
            step = history.verify.of(rows, rows * history.committed)
            # A block that is there before it is asked for is not waited for.
            waits = 1.0 - expected.guessed[k] if self.hides else 1.0
            own = tokens / (waits * history.draft.of(k) + step)
            rates.append(own + history.other_tokens / step)
        return rates
