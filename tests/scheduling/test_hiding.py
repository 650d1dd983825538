"""Waits that are hidden: by decoding on, by drafting ahead, and by drafters that foresee."""

from dataclasses import replace

import pytest
from hypothesis import given

from cluster.scheduling import (
    DraftCost,
    FixedPlanner,
    GoodputPlanner,
    History,
    PlannerName,
    Round,
    planner_of,
)
from cluster.scheduling.acceptance import outlook
from cluster.scheduling.rates import planned, promises
from cluster.speculation.messages import BlockPlan
from tests.scheduling.helpers import COST, histories, past

HIDING = [planner_of(name, 8, hides=True) for name in PlannerName]


@pytest.mark.parametrize("planner", HIDING, ids=str)
@given(history=histories)
def test_going_on_is_planned_from_the_past_and_only_where_a_wait_can_be_hidden(planner, history):
    plan = planner.plan(history)
    assert plan == planner.plan(replace(history))
    assert 0 <= plan.meanwhile <= max(0, plan.length - 1)
    waiting = planner.plan(replace(history, waits=True))
    assert (waiting.meanwhile, waiting.ahead) == (0, 0)
    assert planner.plan(replace(history, draft=DraftCost())).meanwhile == 0


def going_on(acceptance, wait, others=0, foresees=False, unbroken=9):
    """What goodput plans while a block of good drafts takes so many seconds."""
    kept = tuple(Round(8, 8, 8 if n % 10 < 10 * acceptance else 0) for n in range(32))
    load = {"others": others, "other_rows": 1.0 * others, "other_tokens": 1.0 * others}
    known = {"verify": COST, "draft": DraftCost(wait), "unbroken": unbroken}
    history = History(50, 1000, kept, **known, **load, foresees=foresees)
    return GoodputPlanner(8, hides=True).plan(history)


def test_a_sequence_goes_on_for_about_as_long_as_its_block_takes():
    assert going_on(0.8, 0.005).meanwhile == 0
    assert [going_on(0.8, wait).meanwhile for wait in (0.1, 0.2, 0.3)] == [1, 2, 3]
    # A little beyond a step is waited for.
    assert going_on(0.8, 0.11).meanwhile == 1


def test_a_drafter_that_foresees_is_waited_for_by_what_its_wait_exceeds_a_step():
    assert going_on(0.8, 0.1, foresees=True) == replace(going_on(0.8, 0.0), ahead=8)
    # The step that hides it is the one of the block before, which has more rows than a plain one.
    assert [going_on(0.8, wait, foresees=True).meanwhile for wait in (0.15, 0.4, 0.6)] == [0, 1, 2]
    # In a batch as well: who is a little late is waited for by the others.
    assert going_on(0.8, 0.2, 7, foresees=True).meanwhile == 0


def test_a_round_in_which_a_drafter_that_foresees_says_nothing_waits_for_nothing():
    silent = (Round(8, 0, 0), Round(8, 8, 8)) * 16
    history = History(50, 1000, silent, verify=COST, draft=DraftCost(0.4), unbroken=9, foresees=True)
    expected = outlook(history, 8)
    assert 0.4 < expected.says < 0.6
    plan = BlockPlan(8, ahead=8)
    near, far = (
        planned(replace(history, draft=DraftCost(wait)), expected, plan, True) for wait in (0.0, 0.4)
    )
    blind = planned(replace(history, foresees=False), expected, replace(plan, ahead=0), True)
    plain = planned(history, expected, BlockPlan(0), True)
    assert near.seconds < far.seconds < plain.seconds + 0.4 * expected.says
    assert blind.seconds > plain.seconds + 0.3
    # What is known of the round itself does not depend on how long it takes.
    assert (near.tokens, near.rows) == (far.tokens, far.rows)


def test_after_a_plain_round_nothing_was_foreseen():
    begins, waits = going_on(0.8, 0.1, foresees=True, unbroken=0), going_on(0.8, 0.1)
    assert (begins.length, begins.meanwhile) == (waits.length, waits.meanwhile)
    assert begins.ahead == 8
    history = History(50, 1000, past(8, 8, 32), verify=COST, draft=DraftCost(0.1), foresees=True)
    plan, expected = GoodputPlanner(8, hides=True).plan(history), outlook(history, 8)
    assert (plan.length, plan.meanwhile) == (8, 1)
    plan = replace(plan, meanwhile=0)
    first, later = (planned(replace(history, unbroken=n), expected, plan, True) for n in (0, 1))
    assert first.seconds == pytest.approx(later.seconds + 0.1)
    # After a round that was to be compared with it goes on all the same; whoever begins pays for an eighth.
    again, begun = (promises(replace(history, idle=idle), expected, True) for idle in (0, 1))
    assert again == promises(replace(history, unbroken=5), expected, True)
    assert begun[0] == again[0]
    assert begun[8].seconds == pytest.approx(again[8].seconds + 0.1 / 8)


def test_a_plan_is_judged_as_it_was_made():
    history = History(50, 1000, past(8, 8, 32), verify=COST, draft=DraftCost(0.2))
    plan, expected = GoodputPlanner(8, hides=True).plan(history), outlook(history, 8)
    assert plan.ahead
    assert plan.meanwhile
    best = planned(history, expected, plan, True)
    assert best == promises(history, expected, True)[plan.length]
    for worse in (replace(plan, meanwhile=0), replace(plan, ahead=0)):
        assert planned(history, expected, worse, True).rate < best.rate


def test_nothing_hides_the_wait_for_a_tree_but_decoding_on():
    kept = (Round(8, 8, 7, width=2, ranks=(1,) * 7, spread=2.0),) * 32
    history = History(50, 1000, kept, verify=COST, draft=DraftCost(0.15), foresees=True)
    for planner in (FixedPlanner(8, hides=True, width=2), GoodputPlanner(8, hides=True, width=2)):
        plan = planner.plan(history)
        blind = planner.plan(replace(history, foresees=False))
        if plan.width == 2:
            assert (plan.ahead, plan.meanwhile) == (0, blind.meanwhile)
            assert plan.meanwhile


@given(histories)
def test_hiding_a_wait_never_promises_less(history):
    if history.verify is None:
        return
    expected = outlook(history, 8)
    hidden, waiting = (promises(history, expected, hides) for hides in (True, False))
    assert all(h.rate >= w.rate - 1e-9 for h, w in zip(hidden, waiting, strict=True))
