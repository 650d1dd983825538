"""The block length that gives most tokens a second, none included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.scheduling.acceptance import outlook
from cluster.scheduling.allocation import by_survival
from cluster.scheduling.hiding import ahead
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier
from cluster.scheduling.rates import promise, promises
from cluster.speculation.messages import BlockPlan

# A request that decodes plainly drafts again only if that promises this much more, and tries whether it
# would after so many rounds, with so many drafts.
_RETURN = 0.05
_TRIAL_AFTER, _TRIAL = 96, 4
# A round without a block, to compare steps with, comes so seldom that it costs this share of the tokens, and
# once steps were compared often, this one; that the block after it was not drafted ahead costs so much of a
# round more.
_PROBES, _PROBES_KNOWN, _KNOWN, _CATCH_UP = 0.01, 0.0025, 32, 0.15


@dataclass(frozen=True, slots=True)
class GoodputPlanner:
    """Accepted length over the time of a round, both as measured (after SmartSpec, arXiv 2406.14066).

    least, most: bounds of a block's length; from least 0 a request may decode plainly; stop_below: max q
    before which a block ends; hides: whether waits are hidden (docs/scheduling.md); width: drafts at each
    position, at most.
    """

    most: int
    least: int = 0
    stop_below: float = 0.0
    hides: bool = False
    width: int = 1

    def plan(self, history: History) -> BlockPlan:
        most = min(self.most, history.remaining - 1)
        if most <= 0:
            return BlockPlan(length=0)
        if history.verify is None:
            return BlockPlan(most, self.stop_below)
        # A law that waits takes no trees; of equal rates the narrowest block is taken.
        widths = range(1, 1 + (1 if history.waits else self.width))
        outlooks = {width: outlook(history, most, width) for width in widths}
        promised = {width: promises(history, outlooks[width], self.hides) for width in widths}
        lengths = range(min(self.least, most), most + 1)
        width, best = max(
            ((width, length) for width in widths for length in lengths),
            key=lambda each: promised[each[0]][each[1]].rate,
        )
        # Of what the request itself has without drafts: among many it is a small part of what all have.
        gain = (promised[width][best].rate - promised[1][0].rate) / promised[1][0].own
        if history.idle and gain < _RETURN:
            trial = _TRIAL if history.idle >= _TRIAL_AFTER else 0
            width, best = 1, min(max(trial, self.least), most)
        elif best and not self.least and _probes(history, gain):
            return BlockPlan(0, probe=True)
        # Nothing is drafted ahead of a tree.
        hides = self.hides and width == 1
        granted = ahead(history, best, self.most, outlooks[width].guessed[best]) if hides else 0
        now = promise(history, outlooks[width], best, self.hides)
        if history.at_once and best:
            now = now.mixed(promised[1][0], 1.0 - outlooks[width].says)
        expected = now.rows / now.steps, now.tokens / now.steps
        return BlockPlan(best, self.stop_below, granted, now.meanwhile, width, False, *expected)

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


def _probes(history: History, gain: float) -> bool:
    """Whether it is time to see what a step takes for which no block was asked; gain: of tokens a second, by
    drafting."""
    compared = history.draft.compared
    if compared is None:
        # Nothing is drafted ahead, and nothing but the step's own time is to be seen.
        return _PROBES_KNOWN * history.unbroken >= gain
    share = _PROBES if compared < _KNOWN else _PROBES_KNOWN
    return share * history.unbroken >= gain + _CATCH_UP
