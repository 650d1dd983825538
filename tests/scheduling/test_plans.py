"""Every planner: plans from the past alone, within bounds, and of no more than is asked of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import FixedPlanner, GoodputPlanner, History, PlannerName, planner_of
from tests.scheduling.helpers import SHIPPED, histories


@pytest.mark.parametrize("name", SHIPPED)
@given(history=histories)
def test_a_plan_is_a_function_of_the_past_and_leaves_room_for_the_rounds_own_token(name, history):
    plan = SHIPPED[name].plan(history)
    assert plan == SHIPPED[name].plan(replace(history))
    assert 0 <= plan.length <= min(8, history.remaining - 1)


@given(st.integers(0, 20), histories)
def test_a_fixed_length_does_not_depend_on_what_became_of_earlier_blocks(length, history):
    bare = History(5, history.remaining)
    assert FixedPlanner(length).plan(history) == FixedPlanner(length).plan(bare)


def test_planners_are_named_and_bounded():
    assert {planner_of(name, 3).plan(History(1, 50)).length for name in PlannerName} == {3}
    with pytest.raises(ValueError, match="at least 4 and at most 3"):
        planner_of(PlannerName.GOODPUT, 3, 4)


@given(histories, st.integers(0, 8))
def test_goodput_keeps_to_its_lower_bound_where_the_request_has_room(history, least):
    assert GoodputPlanner(8, least).plan(history).length >= min(least, history.remaining - 1)
