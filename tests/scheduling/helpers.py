"""Frontiers over written-down statistics, and every planner that ships."""

from cluster.scheduling import BudgetedPlanner, FixedPlanner, GoodputPlanner, PlannerName

SHIPPED = {
    PlannerName.FIXED: FixedPlanner(8),
    PlannerName.GOODPUT: GoodputPlanner(8),
    PlannerName.BUDGETED: BudgetedPlanner(8),
}


class Watched:
    """A frontier that records how far it was admitted."""

    def __init__(self, values):
        self.values = values
        self.admitted = 0

    @property
    def next_max_q(self):
        return self.values[self.admitted] if self.admitted < len(self.values) else None

    def admit(self):
        assert self.admitted < len(self.values), "admitted beyond the block"
        self.admitted += 1


def rows_of(planner, blocks, budget):
    """The planner's rows for blocks of these statistics."""
    frontiers = [Watched(block) for block in blocks]
    rows = planner.admit(frontiers, budget)
    # A decision in is a decision: nothing is given without it, nothing taken back.
    assert rows == [frontier.admitted for frontier in frontiers]
    assert sum(rows) <= budget.rows
    return rows
