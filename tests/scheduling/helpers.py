"""Pasts of every kind, frontiers over written-down statistics, and every planner that ships."""

from hypothesis import strategies as st

from cluster.scheduling import (
    BudgetedPlanner,
    DraftCost,
    Experience,
    FixedPlanner,
    GoodputPlanner,
    History,
    PlannerName,
    Round,
    VerifyCost,
)

SHIPPED = {
    PlannerName.FIXED: FixedPlanner(8),
    PlannerName.GOODPUT: GoodputPlanner(8),
    PlannerName.BUDGETED: BudgetedPlanner(8),
}

# Like a small model on two cores: the first rows are cheap.
COST = VerifyCost((1, 4, 8, 16), (0.1, 0.11, 0.13, 0.17))
# Rows that cost next to nothing.
CHEAP = VerifyCost((1, 64), (0.1, 0.101))
# The second of siblings was right wherever the first was not, and the block went on behind it.
RESCUED = (Round(4, 4, 4, True, (0.5,) * 4, 2, (0, 1, 0, 1), 0, 2.0),) * 20


def past(planned, accepted, count=20, drafted=None):
    return (Round(planned, planned if drafted is None else drafted, accepted),) * count


rounds = st.builds(
    lambda planned, share, kept, whole: Round(
        planned, int(planned * share), int(planned * share * kept), whole
    ),
    st.integers(1, 16),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
)
histories = st.builds(
    History,
    committed=st.integers(1, 2000),
    remaining=st.integers(1, 500),
    rounds=st.lists(rounds, max_size=12).map(tuple),
    idle=st.integers(0, 300),
    unbroken=st.integers(0, 300),
    experience=st.builds(Experience, st.floats(0, 40), st.floats(0, 40)).filter(
        lambda e: e.accepted <= e.tried
    ),
    others=st.integers(0, 63),
    other_rows=st.floats(0, 500),
    other_tokens=st.floats(0, 200),
    other_seconds=st.floats(0, 1),
    verify=st.sampled_from([None, COST]),
    draft=st.builds(
        DraftCost,
        st.floats(0, 1),
        st.floats(0, 0.1),
        st.floats(0, 0.5),
        st.one_of(st.none(), st.integers(0, 64)),
    ),
    foresees=st.booleans(),
)


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
