"""How much goodput drafts: near the best that could have been chosen, and nothing where that is best."""

import random
from dataclasses import replace

import pytest

from cluster.scheduling import DraftCost, Experience, FixedPlanner, GoodputPlanner, History, Round, VerifyCost
from tests.scheduling.helpers import CHEAP, COST, RESCUED, past
from verifier_service.measuring.measurements import Measurements


def best_fixed(acceptance, draft, most=8):
    """Goodputs of every fixed length when each draft is accepted with a known chance."""
    expected = [1.0]
    for k in range(1, most + 1):
        expected.append(expected[-1] + acceptance**k)
    return [tokens / (draft.of(k) + COST.of(1 + k)) for k, tokens in enumerate(expected)]


def simulated(acceptance, draft, seed):
    """Goodput of a request whose drafts are all accepted with one chance; its first rounds are left out."""
    planner = GoodputPlanner(8)
    chance, measured = random.Random(seed), Measurements(None)
    history = History(committed=50, remaining=100_000, verify=COST, draft=draft)
    emitted, seconds = 0, 0.0
    for count in range(1000):
        k = planner.plan(history).length
        accepted = 0
        while accepted < k and chance.random() < acceptance:
            accepted += 1
        if count >= 100:
            emitted += accepted + 1
            seconds += draft.of(k) + COST.of(1 + k)
        if k:
            measured.decided("", "", Round(k, k, accepted))
            kept = (*history.rounds, Round(k, k, accepted))[-32:]
            history = replace(history, rounds=kept, idle=0, experience=measured.experience("", ""))
        else:
            history = replace(history, idle=history.idle + 1)
    return emitted / seconds


@pytest.mark.parametrize("draft", [DraftCost(), DraftCost(0.02, 0.004), DraftCost(0.1, 0.02)], ids=str)
@pytest.mark.parametrize("acceptance", [0.02, 0.6, 0.95])
def test_the_chosen_length_is_within_five_percent_of_the_best_fixed_one(acceptance, draft):
    best = max(best_fixed(acceptance, draft))
    assert all(simulated(acceptance, draft, seed) > 0.95 * best for seed in range(3))


@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.8])
def test_where_drafting_hardly_pays_no_more_than_that_is_lost(acceptance):
    """Near the break-even chance decides whether a request drafts; it is no slower than plainly."""
    draft = DraftCost(0.1, 0.02)
    plain = best_fixed(acceptance, draft)[0]
    assert all(simulated(acceptance, draft, seed) > 0.975 * plain for seed in range(3))


def test_useless_drafts_end_and_are_tried_again_now_and_then():
    planner = GoodputPlanner(8)
    known = Experience(200.0, 3.0)
    history = History(50, 1000, past(8, 0), verify=COST, experience=known)
    assert planner.plan(history).length == 0
    lengths = [planner.plan(replace(history, idle=idle)).length for idle in range(1, 200)]
    assert set(lengths[:90]) == {0}
    assert 0 < max(lengths) < 8
    assert planner.plan(replace(history, rounds=past(4, 4), idle=0)).length > 4


def test_a_request_that_stopped_needs_more_than_a_tie_to_begin_again():
    planner = GoodputPlanner(4)
    flips = []
    for hundredth in range(100):
        accepted = Experience(1000.0, 10.0 * hundredth)
        history = History(50, 1000, verify=COST, draft=DraftCost(0.03), experience=accepted)
        flips.append((planner.plan(history).length > 0, planner.plan(replace(history, idle=5)).length > 0))
    begun, returned = (column.index(True) for column in zip(*flips, strict=True))
    assert begun < returned
    assert all(flip == (True, True) for flip in flips[returned:])


def test_under_load_fewer_drafts_are_asked_for_and_at_last_none():
    lengths = []
    for others in (0, 3, 15, 63):
        history = History(
            50,
            1000,
            (*past(8, 1, 10), *past(8, 3, 5), *past(8, 0, 9)),
            others=others,
            other_rows=2.0 * others,
            other_tokens=1.5 * others,
            verify=VerifyCost((1, 8, 16, 64), (0.1, 0.12, 0.2, 0.9)),
        )
        lengths.append(GoodputPlanner(8).plan(history).length)
    assert lengths[0] >= 2 > lengths[1]
    assert lengths[-1] == 0


def test_a_long_round_trip_ends_drafting_and_a_short_one_does_not():
    history = History(50, 1000, past(8, 3), verify=COST)
    assert GoodputPlanner(8).plan(replace(history, draft=DraftCost(0.01))).length >= 3
    assert GoodputPlanner(8).plan(replace(history, draft=DraftCost(2.0))).length == 0


# Rows that cost as much as steps.
DEAR = VerifyCost((1, 2), (0.1, 0.2))


def test_trees_are_planned_where_siblings_are_right_and_rows_are_cheap():
    wide = GoodputPlanner(4, width=3)
    history = History(50, 500, RESCUED, verify=CHEAP)
    assert wide.plan(history).width > 1
    assert wide.plan(replace(history, verify=DEAR)).width == 1
    assert wide.plan(replace(history, waits=True)).width == 1
    assert GoodputPlanner(4).plan(history).width == 1
    # Where siblings never help, rows that cost a little are not worth it.
    useless = (Round(4, 4, 1, True, (0.5,) * 2, 3, (0,), 3, 3.0),) * 30
    assert wide.plan(replace(history, rounds=useless, verify=COST)).width == 1
    assert FixedPlanner(4, width=3).plan(history).width == 3
