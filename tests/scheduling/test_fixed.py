"""The fixed planner, and that admission cannot see what it must not."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import FixedPlanner, History

statistics = st.lists(st.floats(0, 1), max_size=8)


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
    assert unmoved(FixedPlanner(8), blocks, changed, budget, which, at)


def unmoved(planner, blocks, changed, budget, which, at):
    """Whether the decisions up to position `at` of a block are the same when what follows is changed."""
    before = planner.admit([Watched(block) for block in blocks], budget)[which]
    after = planner.admit([Watched(block) for block in changed], budget)[which]
    # A longer block elsewhere may only take budget after every earlier row was given in turn.
    return all((before >= k) == (after >= k) for k in range(1, at + 1))


class Regretful(FixedPlanner):
    """Takes a row back when the statistic behind it is low: a biased rule."""

    def admit(self, frontiers, budget):
        rows = super().admit(frontiers, budget)
        return [
            taken - ((frontier.next_max_q or 1.0) < 0.5)
            for taken, frontier in zip(rows, frontiers, strict=True)
        ]


def test_a_planner_that_takes_rows_back_is_caught():
    assert not unmoved(Regretful(8), [[0.9, 0.9]], [[0.9, 0.1]], budget=1, which=0, at=1)


class BoundedView:
    """A frontier of one position: looking is allowed, looking beyond is an error."""

    def __init__(self, values):
        self._values = iter(values)
        self.next_max_q = next(self._values, None)

    def admit(self):
        assert self.next_max_q is not None, "admitted beyond the block"
        self.next_max_q = next(self._values, None)


@given(st.lists(statistics, max_size=5), st.integers(0, 20))
def test_one_statistic_at_a_time_is_all_that_admission_needs(blocks, budget):
    bounded = FixedPlanner(8).admit([BoundedView(block) for block in blocks], budget)
    assert bounded == FixedPlanner(8).admit([Watched(block) for block in blocks], budget)


@given(st.integers(0, 20), st.integers(1, 100), st.lists(st.integers(0, 9), max_size=5))
def test_a_plan_does_not_depend_on_what_became_of_earlier_blocks(length, remaining, accepted):
    past = History(5, remaining, drafted=(9,) * len(accepted), accepted=tuple(accepted))
    assert FixedPlanner(length).plan(past) == FixedPlanner(length).plan(History(5, remaining))
