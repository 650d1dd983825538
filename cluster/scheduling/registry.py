"""The planners that ship, by name."""

from __future__ import annotations

from enum import StrEnum

from cluster.scheduling.budgeted import BudgetedPlanner
from cluster.scheduling.fixed import FixedPlanner
from cluster.scheduling.goodput import GoodputPlanner
from cluster.scheduling.planner import Planner


class PlannerName(StrEnum):
    """fixed: as many drafts as asked for; goodput: as many as pay, none included; budgeted: one budget of
    rows for the whole batch."""

    FIXED = "fixed"
    GOODPUT = "goodput"
    BUDGETED = "budgeted"


def planner_of(
    name: PlannerName,
    most: int,
    least: int = 0,
    stop_below: float = 0.0,
    hides: bool = False,
    width: int = 1,
) -> Planner:
    """least, most: bounds of a block's length, the lower one for goodput alone; stop_below: max q before
    which a block ends; hides: whether waits are hidden; width: drafts at each position, under goodput at
    most. Raises ValueError for bounds that are none."""
    if not 0 <= least <= most:
        raise ValueError(f"a block has at least {least} and at most {most} drafts")
    if width < 1:
        raise ValueError(f"a block has at least 1 draft at each position, got {width}")
    match name:
        case PlannerName.FIXED:
            return FixedPlanner(most, stop_below, hides, width)
        case PlannerName.GOODPUT:
            return GoodputPlanner(most, least, stop_below, hides, width)
        case PlannerName.BUDGETED:
            return BudgetedPlanner(most, stop_below, hides, width)
