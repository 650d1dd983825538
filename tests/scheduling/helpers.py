"""Frontiers over written-down statistics, and every planner that ships."""

from cluster.scheduling import BudgetedPlanner, FixedPlanner, GoodputPlanner, PlannerName

SHIPPED = {
    PlannerName.FIXED: FixedPlanner(8),
    PlannerName.GOODPUT: GoodputPlanner(8),
    PlannerName.BUDGETED: BudgetedPlanner(8),
}


class Watched:
    """A frontier that records how far it was admitted."""

    def __init__(self, values, parents=None):
        self.values, self.parents = values, parents
        self.admitted = 0

    @property
    def next_max_q(self):
        return self.values[self.admitted] if self.admitted < len(self.values) else None

    @property
    def next_parent(self):
        return self.admitted - 1 if self.parents is None else self.parents[self.admitted]

    def admit(self):
        assert self.admitted < len(self.values), "admitted beyond the block"
        self.admitted += 1


def rows_of(planner, blocks, budget, parents=None):
    """The planner's rows for blocks of these statistics; parents: of trees, for each block."""
    frontiers = [Watched(*each) for each in zip(blocks, parents or [None] * len(blocks), strict=True)]
    rows = planner.admit(frontiers, budget)
    # A decision in is a decision: nothing is given without it, nothing taken back.
    assert rows == [frontier.admitted for frontier in frontiers]
    assert sum(rows) <= budget.rows
    return rows
