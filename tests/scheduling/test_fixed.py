"""The fixed planner, and that admission cannot see what it must not."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import FixedPlanner, History

statistics = st.lists(st.floats(0, 1), max_size=8)


class Watched:
    """A frontier that records which statistics were looked at before which were admitted."""

    def __init__(self, values):
        self.values = values
        self.admitted = 0

    @property
    def next_max_q(self):
        return self.values[self.admitted] if self.admitted < len(self.values) else None

    def admit(self):
        assert self.admitted < len(self.values), "admitted beyond the block"
        self.admitted += 1


@given(st.integers(0, 64), st.integers(1, 500))
def test_a_plan_leaves_room_for_the_rounds_own_token(length, remaining):
    plan = FixedPlanner(length).plan(History(committed=10, remaining=remaining))
    assert plan.length == min(length, remaining - 1)


@given(st.lists(statistics, max_size=6), st.integers(0, 30))
def test_admission_fills_the_budget_in_turn(blocks, budget):
    frontiers = [Watched(block) for block in blocks]
    rows = FixedPlanner(8).admit(frontiers, budget)
    assert rows == [frontier.admitted for frontier in frontiers]
    assert sum(rows) == min(budget, sum(map(len, blocks)))
    # Nobody gets two rows more than somebody who could have taken one.
    for mine, block in zip(rows, blocks, strict=True):
        if mine < len(block):
            assert max(rows) <= mine + 1


@given(st.lists(statistics, min_size=1, max_size=4), st.integers(0, 20), st.data())
def test_what_lies_behind_a_position_does_not_change_whether_it_is_admitted(blocks, budget, data):
    which = data.draw(st.integers(0, len(blocks) - 1))
    at = data.draw(st.integers(0, len(blocks[which])))
    changed = [list(block) for block in blocks]
    changed[which][at:] = data.draw(st.lists(st.floats(0, 1), min_size=len(blocks[which]) - at, max_size=8))
    before = FixedPlanner(8).admit([Watched(block) for block in blocks], budget)[which]
    after = FixedPlanner(8).admit([Watched(block) for block in changed], budget)[which]
    for k in range(1, at + 1):
        # A longer block elsewhere may only take budget after every earlier row was given in turn.
        assert (before >= k) == (after >= k)
