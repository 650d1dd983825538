"""Admission: no decision looks at the draft that it decides on, or at anything behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import Budget, BudgetedPlanner, Calibration, FixedPlanner, GoodputPlanner, VerifyCost
from cluster.scheduling.calibration import Reach
from tests.scheduling.helpers import SHIPPED, rows_of

statistics = st.lists(st.floats(0, 1), max_size=6)
seconds = st.lists(st.floats(0.01, 3.0), min_size=1, max_size=5)


@st.composite
def budgets(draw):
    """With any cost, also one that falls and rises again."""
    times = draw(seconds)
    cost = VerifyCost(tuple(range(1, len(times) + 1)), tuple(times), draw(st.floats(0, 1e-3)))
    tried = draw(st.floats(0, 50))
    calibration = Calibration((tried,) * 8, (tried * draw(st.floats(0, 1)),) * 8)
    survivals = tuple(sorted(draw(statistics), reverse=True))
    return Budget(
        draw(st.integers(0, 20)),
        draw(st.integers(1, 5)),
        draw(st.floats(0, 100)),
        draw(st.sampled_from([None, cost])),
        calibration,
        survivals,
    )


def changed_behind(data, blocks):
    """(which, at, blocks with everything behind position `at` of one of them changed, its length too)."""
    which = data.draw(st.integers(0, len(blocks) - 1))
    at = data.draw(st.integers(0, len(blocks[which])))
    changed = [list(block) for block in blocks]
    changed[which][at:] = data.draw(statistics)
    return which, at, changed


def unmoved(planner, blocks, changed, budget, which, at):
    """Whether {N >= 1} … {N >= at}, decided with the first `at` statistics in sight, are the same."""
    before, after = (rows_of(planner, each, budget)[which] for each in (blocks, changed))
    return min(before, at) == min(after, at)


@pytest.mark.parametrize("name", SHIPPED)
@given(st.lists(statistics, min_size=1, max_size=4), budgets(), st.data())
def test_what_lies_behind_a_position_does_not_change_whether_it_is_admitted(name, blocks, budget, data):
    # The statistic of position k is known before x_k is drawn; x_k shapes those behind it and nothing else.
    which, at, changed = changed_behind(data, blocks)
    assert unmoved(SHIPPED[name], blocks, changed, budget, which, at)


def grown(data, parents, count):
    """As many parents as asked for: those given, as far as they go, and others after them."""
    kept = parents[:count]
    return [*kept, *(data.draw(st.integers(-1, at - 1)) for at in range(len(kept), count))]


@pytest.mark.parametrize("name", SHIPPED)
@given(st.lists(statistics, min_size=1, max_size=4), budgets(), st.data())
def test_nor_does_what_lies_behind_a_draft_of_a_tree_in_its_order(name, blocks, budget, data):
    which, at, changed = changed_behind(data, blocks)
    parents = [grown(data, [], len(block)) for block in blocks]
    others = list(parents)
    others[which] = grown(data, parents[which][:at], len(changed[which]))
    before = rows_of(SHIPPED[name], blocks, budget, parents)[which]
    after = rows_of(SHIPPED[name], changed, budget, others)[which]
    assert min(before, at) == min(after, at)


def test_siblings_of_a_tree_are_admitted_for_what_those_before_them_leave():
    # Counted: of first drafts nine in ten, of those behind them one in five where the first is wrong.
    counted = Calibration((1e6,) * 8, (0.9e6,) * 8, 1e6, 0.2e6)
    reach = Reach(counted)
    chances = [reach.add(1.0, parent) for parent in (-1, -1, 0, 2, 1, -1)]
    expected = [0.9, 0.1 * 0.2, 0.81, 0.729, 0.02 * 0.9, 0.08 * 0.2]
    assert chances == pytest.approx(expected, rel=1e-4)
    # A row costs 5 % of a step: the second child, and what follows it, do not pay.
    cost = VerifyCost((1, 11), (1.0, 1.5))
    budget = Budget(8, cost=cost, calibration=counted)
    assert rows_of(GoodputPlanner(3), [[1.0] * 4], budget, [[-1, 0, 1, -1]]) == [3]
    free = Budget(8, cost=VerifyCost((1, 2), (1.0, 1.0 + 1e-9)), calibration=counted)
    assert rows_of(GoodputPlanner(3), [[1.0] * 4], free, [[-1, 0, 1, -1]]) == [4]


@pytest.mark.parametrize("name", SHIPPED)
@given(st.lists(statistics, max_size=5), budgets())
def test_admission_is_a_function_of_what_it_is_given(name, blocks, budget):
    assert rows_of(SHIPPED[name], blocks, budget) == rows_of(SHIPPED[name], blocks, budget)


class Peeking(FixedPlanner):
    """Looks through the frontiers at all statistics, and takes the best of all goodputs: a biased rule."""

    def admit(self, frontiers, budget):
        rows = []
        for frontier in frontiers:
            reach, expected, goodputs = 1.0, 1.0, [1.0 / budget.seconds(0)]
            for drafts, value in enumerate(frontier.values[: budget.rows], start=1):
                reach *= value
                expected += reach
                goodputs.append(expected / budget.seconds(drafts))
            rows.append(max(range(len(goodputs)), key=goodputs.__getitem__))
            for _ in range(rows[-1]):
                frontier.admit()
        return rows


class Regretful(FixedPlanner):
    """Leaves a position out when the statistic behind it is low: a biased rule."""

    def admit(self, frontiers, budget):
        rows = [int(len(each.values) < 2 or each.values[1] >= 0.5) for each in frontiers]
        for frontier, taken in zip(frontiers, rows, strict=True):
            if taken:
                frontier.admit()
        return rows


# DSpark, arXiv 2607.05147, appendix A: steps per second with one, two and three rows.
DSPARK = Budget(rows=2, cost=VerifyCost((1, 2, 3), (1 / 1.0, 1 / 0.5, 1 / 0.45)))


@pytest.mark.parametrize("planner", [Peeking(2), Regretful(2)], ids=["peeking", "regretful"])
def test_a_planner_that_peeks_is_caught(planner):
    assert not unmoved(planner, [[0.8, 0.9]], [[0.8, 0.0]], DSPARK, which=0, at=1)


@pytest.mark.parametrize("values", [[0.8, 0.9], [0.8, 0.0]])
def test_goodput_stops_where_it_first_drops(values):
    assert rows_of(GoodputPlanner(2), [values], DSPARK) == [0]
    assert rows_of(Peeking(2), [[0.8, 0.9]], DSPARK) == [2]


@given(st.lists(statistics, max_size=6), st.integers(0, 30))
def test_a_fixed_length_fills_the_budget_in_turn(blocks, rows):
    given_rows = rows_of(FixedPlanner(8), blocks, Budget(rows))
    assert sum(given_rows) == min(rows, sum(map(len, blocks)))
    # Nobody gets two rows more than somebody who could have taken one.
    for mine, block in zip(given_rows, blocks, strict=True):
        if mine < len(block):
            assert max(given_rows) <= mine + 1


@pytest.mark.parametrize("name", SHIPPED)
@given(blocks=st.lists(statistics, max_size=5), rows=st.integers(0, 30))
def test_before_anything_was_measured_the_budget_is_filled(name, blocks, rows):
    # A chance of nothing at all adds nothing, and costs nothing either.
    assert sum(rows_of(SHIPPED[name], blocks, Budget(rows))) == min(rows, sum(map(len, blocks)))


def test_the_likeliest_drafts_come_first_and_ties_go_to_whom_comes_first():
    planner = BudgetedPlanner(4)
    blocks = [[0.5, 0.9, 0.9], [0.9, 0.9, 0.1], [0.9, 0.2]]
    # 0.9 and 0.9 of the last two, then 0.81, then 0.5, 0.45 and so on.
    assert [rows_of(planner, blocks, Budget(rows)) for rows in range(5)] == [
        [0, 0, 0],
        [0, 1, 0],
        [0, 1, 1],
        [0, 2, 1],
        [1, 2, 1],
    ]


def test_the_capacity_of_a_batch_is_what_earlier_drafts_would_have_paid_for():
    steep = VerifyCost((1, 2, 3, 4, 9), (1.0, 1.0, 1.0, 2.0, 7.0))
    block = [[1.0] * 8]
    for survivals, expected in [((0.9, 0.8, 0.1), 2), ((0.9,) * 8, 2), ((0.0, 0.0), 0), ((), 8)]:
        budget = Budget(8, 1, 0.0, steep, survivals=survivals)
        assert rows_of(BudgetedPlanner(8), block, budget) == [expected]


def test_what_drafts_came_to_corrects_what_they_promise():
    sure = [[0.95, 0.95, 0.95]]
    cost = VerifyCost((1, 4), (1.0, 1.9))
    assert rows_of(GoodputPlanner(3), sure, Budget(3, cost=cost)) == [3]
    wrong = Calibration((100.0,) * 8, (5.0,) * 8)
    assert rows_of(GoodputPlanner(3), sure, Budget(3, cost=cost, calibration=wrong)) == [0]
    humble = Calibration((100.0,) * 8, (90.0,) * 8)
    assert rows_of(GoodputPlanner(3), [[0.1] * 3], Budget(3, cost=cost, calibration=humble)) == [3]
