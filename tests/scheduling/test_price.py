"""What steps cost, and asking: who pays for it, when that is worth it, and how it is found out."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import DraftCost, Experience, GoodputPlanner, History, Round, VerifyCost
from cluster.scheduling.acceptance import outlook
from cluster.scheduling.rates import promises
from cluster.speculation.messages import BlockPlan
from tests.scheduling.helpers import CHEAP, COST, histories, past
from verifier_service.measuring.measurements import Measurements
from verifier_service.measuring.pricing import Step


def test_costs_are_linear_between_and_beyond_what_was_measured():
    assert [COST.of(rows) for rows in (1, 2.5, 4, 16)] == pytest.approx([0.1, 0.105, 0.11, 0.17])
    assert COST.of(24) == pytest.approx(0.21)
    assert replace(COST, per_key=1e-6).of(1, 1000) == pytest.approx(0.101)
    assert VerifyCost((1,), (0.1,)).of(50) == 0.1
    for rows, seconds in [((), ()), ((2, 1), (1.0, 1.0)), ((1,), (0.0,)), ((1, 2), (1.0,))]:
        with pytest.raises(ValueError, match="ascending rows"):
            VerifyCost(rows, seconds)


# Blocks mostly come empty, and are right when they come.
RARE = tuple(Round(8, 2 if n % 10 == 0 else 0, 2 if n % 10 == 0 else 0) for n in range(30))


def test_a_drafter_that_has_little_to_say_is_worth_asking_where_that_costs_nothing():
    history = History(50, 1000, RARE, verify=COST)
    assert GoodputPlanner(8).plan(history).length == 8
    # A quarter more tokens, for a step that is a tenth longer, or half as long again.
    assert GoodputPlanner(8).plan(replace(history, draft=DraftCost(price=0.01))).length == 8
    assert GoodputPlanner(8).plan(replace(history, draft=DraftCost(price=0.05))).length == 0
    # In a batch it costs all the others, too.
    shared = {"others": 7, "other_rows": 7.0, "other_tokens": 7.0, "verify": CHEAP}
    priced = replace(history, draft=DraftCost(price=0.005))
    assert GoodputPlanner(8).plan(replace(priced, verify=CHEAP)).length > 0
    assert GoodputPlanner(8).plan(replace(priced, **shared)).length == 0


@given(histories, st.floats(0.001, 0.5))
def test_a_price_is_paid_by_whoever_drafts_and_by_nobody_else(history, price):
    if history.verify is None:
        return
    expected = outlook(history, 8)
    free = replace(history, draft=replace(history.draft, price=0.0))
    dear = replace(history, draft=replace(history.draft, price=price))
    for hides in (False, True):
        cheap, priced = (promises(each, expected, hides) for each in (free, dear))
        assert priced[0] == cheap[0]
        # Of a wait of many steps a dearer step hides more, which may make up for it.
        if not hides:
            assert all(b.rate < a.rate for a, b in zip(cheap[1:], priced[1:], strict=True))
    # What others ask for makes every step longer.
    busy = replace(history, other_seconds=history.other_seconds + price)
    pairs = zip(promises(history, expected, False), promises(busy, expected, False), strict=True)
    assert all(b.seconds == pytest.approx(a.seconds + price) for a, b in pairs)


def test_where_a_drafter_says_little_to_others_fewer_blocks_are_asked_for_in_vain():
    def silent(history):
        """How many a request asks for, none of which has a draft."""
        plan = GoodputPlanner(8).plan
        return next(n for n in range(99) if not plan(replace(history, rounds=past(8, 0, n, 0))).length)

    new = History(50, 1000, verify=COST, draft=DraftCost(price=0.02))
    known = replace(new, experience=Experience(20.0, 10.0, asked=200.0, given=6.0))
    assert 0 < 3 * silent(known) < silent(new)
    # For nothing they are asked for all the same.
    free, unknown = replace(known, draft=DraftCost()), replace(known.experience, asked=0.0, given=0.0)
    assert outlook(free, 8).rows == outlook(replace(free, experience=unknown), 8).rows


def test_who_says_at_once_that_it_has_nothing_is_judged_by_what_it_says():
    """A drafter that is right in each twentieth round and silent in the others, which cost little."""
    seldom = (*past(8, 8, 1), *past(8, 0, 19, 0)) * 3
    history = History(50, 1000, seldom, verify=COST, draft=DraftCost(0.001))
    once = replace(history, at_once=True)
    assert GoodputPlanner(8).plan(once).length >= 4
    best = max(each.own for each in promises(once, outlook(once, 8), False))
    assert best > 2 * max(each.own for each in promises(history, outlook(history, 8), False))
    # What it is asked in vain is paid for by what it says.
    dear = replace(once, draft=DraftCost(0.1))
    assert GoodputPlanner(8).plan(dear).length == 0
    # Others are told what its rows are in all rounds.
    plan = GoodputPlanner(8).plan(once)
    assert plan.rows < 2.0
    assert plan.tokens < 2.0


def test_what_a_round_takes_without_a_block_is_looked_at_now_and_then():
    def probes(history):
        """In which rounds that would draft nothing is."""
        plans = [GoodputPlanner(8).plan(replace(history, unbroken=n)) for n in range(600)]
        assert all(plan.length or plan.probe for plan in plans)
        return next((n for n, plan in enumerate(plans) if plan.probe), None)

    for kept, gain in ((past(8, 0, 32), 0.1), (past(8, 1, 32), 0.8)):
        history = History(50, 1000, kept, verify=CHEAP, draft=DraftCost(compared=0))
        first = probes(history)
        # It costs the gain, once in so many rounds.
        assert gain / first < 0.01
        known = probes(replace(history, draft=DraftCost(compared=64)))
        assert known == pytest.approx(4 * first, abs=4)
        # In process no block is drafted ahead, so that none has to catch up.
        assert probes(replace(history, draft=DraftCost())) == pytest.approx(known - 60, abs=4)
    assert probes(replace(history, rounds=past(8, 8, 32), draft=DraftCost(compared=64))) is None


def priced(price, says, seed, rounds=3000):
    """The goodput of requests of 100 rounds whose drafter says something in so many of them, and is right;
    over that of never asking. Steps are noisy, and what they take is measured."""
    planner, chance, measured = GoodputPlanner(8), random.Random(seed), Measurements(COST)
    emitted, seconds, asked = 0, 0.0, 0
    for count in range(rounds):
        if count % 100 == 0:
            history = History(50, 100_000)
        known = {"verify": measured.verify, "draft": measured.draft("apart")}
        history = replace(history, experience=measured.experience("", "apart"), **known)
        # Who decodes plainly is planned for now and then.
        plan = planner.plan(history) if history.idle % 32 == 0 else BlockPlan(0)
        k = plan.length
        kept = min(k, 2) if chance.random() < says else 0
        took = (COST.of(1 + kept) + (price if k else 0.0)) * chance.gauss(1.0, 0.03)
        measured.stepped(1, 1 + kept, took, Step(1, 1 + kept, 0, took, {"apart": 1} if k else {}))
        if count > 500:
            emitted, seconds, asked = emitted + 1 + kept, seconds + took, asked + (k > 0)
        if k:
            measured.decided("", "apart", Round(k, kept, kept))
            over = (*history.rounds, Round(k, kept, kept))[-32:]
            history = replace(history, rounds=over, idle=0, unbroken=history.unbroken + 1)
        else:
            history = replace(history, idle=0 if plan.probe else history.idle + 1, unbroken=0)
    return emitted / seconds * COST.of(1), asked / (rounds - 501)


def test_asking_ends_where_it_takes_more_than_it_gives_and_not_where_it_does_not():
    for seed in range(3):
        rate, asked = priced(0.02, 0.05, seed)
        assert rate > 0.97
        assert asked < 0.2
        # The same drafts, for nothing; and good ones, at that price.
        rate, asked = priced(0.0, 0.05, seed)
        assert rate > 1.05
        assert asked > 0.9
        rate, asked = priced(0.02, 0.5, seed)
        assert rate > 1.5
        assert asked > 0.98
