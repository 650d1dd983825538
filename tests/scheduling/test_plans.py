"""Plans: from the past alone, within bounds, and near the best that could have been chosen."""

import random
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import mypy.api
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster.scheduling
from cluster.scheduling import (
    DraftCost,
    Experience,
    FixedPlanner,
    GoodputPlanner,
    History,
    PlannerName,
    Round,
    VerifyCost,
    planner_of,
)
from cluster.scheduling.acceptance import measured, outlook
from cluster.scheduling.rates import planned, promises
from cluster.speculation.messages import BlockPlan
from tests.scheduling.helpers import SHIPPED
from verifier_service.measurements import Measurements
from verifier_service.pricing import Step

# Like a small model on two cores: the first rows are cheap.
COST = VerifyCost((1, 4, 8, 16), (0.1, 0.11, 0.13, 0.17))


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


@pytest.mark.parametrize("name", SHIPPED)
@given(history=histories)
def test_a_plan_is_a_function_of_the_past_and_leaves_room_for_the_rounds_own_token(name, history):
    plan = SHIPPED[name].plan(history)
    assert plan == SHIPPED[name].plan(replace(history))
    assert 0 <= plan.length <= min(8, history.remaining - 1)


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
    # In a batch a block that is often late for the next step is not counted on.
    assert [going_on(0.8, wait, 7, foresees=True).meanwhile for wait in (0.05, 0.2)] == [0, 1]


def test_after_a_plain_round_nothing_was_foreseen():
    assert going_on(0.8, 0.1, foresees=True, unbroken=0) == replace(going_on(0.8, 0.1), ahead=8)
    history = History(50, 1000, past(8, 8, 32), verify=COST, draft=DraftCost(0.1), foresees=True)
    plan, expected = GoodputPlanner(8, hides=True).plan(history), outlook(history, 8)
    assert (plan.length, plan.meanwhile) == (8, 1)
    plan = replace(plan, meanwhile=0)
    first, later = (planned(replace(history, unbroken=n), expected, plan, True) for n in (0, 1))
    assert first.seconds == pytest.approx(later.seconds + 0.1)
    # After a round that was to be compared with it goes on all the same; whoever begins pays for half of it.
    again, begun = (promises(replace(history, idle=idle), expected, True) for idle in (0, 1))
    assert again == promises(replace(history, unbroken=5), expected, True)
    assert begun[0] == again[0]
    assert begun[8].seconds == pytest.approx(again[8].seconds + 0.05)


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


@given(histories, st.integers(0, 8))
def test_goodput_keeps_to_its_lower_bound_where_the_request_has_room(history, least):
    assert GoodputPlanner(8, least).plan(history).length >= min(least, history.remaining - 1)


@given(histories)
def test_what_is_expected_of_a_block_is_possible(history):
    expected = outlook(history, 8)
    assert len(expected.tokens) == len(expected.rows) == 9
    assert (expected.tokens[0], expected.rows[0]) == (1.0, 0.0)
    for k in range(8):
        more_tokens, more_rows = (values[k + 1] - values[k] for values in (expected.tokens, expected.rows))
        assert -1e-12 <= more_tokens <= more_rows + 1e-9 <= 1.0 + 2e-9


def test_what_rounds_came_to_is_counted_without_a_prior():
    # Of three blocks one is empty, and of the two others the second is right to the end.
    seen = measured((Round(2, 0, 0), Round(2, 2, 1), Round(2, 2, 2)), 2)
    assert seen.rows == pytest.approx((0.0, 2 / 3, 4 / 3))
    assert seen.tokens == pytest.approx((1.0, 1 + 2 / 3, 1 + 2 / 3 + 1 / 3))
    assert measured((), 2).tokens == (1.0, 1.0, 1.0)


def test_long_blocks_that_are_right_and_short_ones_that_are_not_are_expected_as_they_come():
    """A drafter that looks drafts up says much where it is right: apart, its length and its chances promise
    less than came about."""
    rounds = (Round(8, 8, 8), Round(8, 8, 8), Round(8, 2, 0), Round(8, 0, 0)) * 8
    seen = measured(rounds, 8)
    assert seen.tokens[8] == pytest.approx(1 + 16 / 4)
    assert seen.rows[8] == pytest.approx(18 / 4, rel=0.05)
    # With what is assumed before anything is known.
    assert outlook(History(50, 1000, rounds), 8).tokens[8] == pytest.approx(5, rel=0.1)


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
        assert probes(replace(history, draft=DraftCost(compared=64))) == pytest.approx(4 * first, abs=4)
        assert probes(replace(history, draft=DraftCost())) is None
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


@given(st.integers(0, 20), histories)
def test_a_fixed_length_does_not_depend_on_what_became_of_earlier_blocks(length, history):
    bare = History(5, history.remaining)
    assert FixedPlanner(length).plan(history) == FixedPlanner(length).plan(bare)


def test_costs_are_linear_between_and_beyond_what_was_measured():
    assert [COST.of(rows) for rows in (1, 2.5, 4, 16)] == pytest.approx([0.1, 0.105, 0.11, 0.17])
    assert COST.of(24) == pytest.approx(0.21)
    assert replace(COST, per_key=1e-6).of(1, 1000) == pytest.approx(0.101)
    assert VerifyCost((1,), (0.1,)).of(50) == 0.1
    for rows, seconds in [((), ()), ((2, 1), (1.0, 1.0)), ((1,), (0.0,)), ((1, 2), (1.0,))]:
        with pytest.raises(ValueError, match="ascending rows"):
            VerifyCost(rows, seconds)


def test_planners_are_named_and_bounded():
    assert {planner_of(name, 3).plan(History(1, 50)).length for name in PlannerName} == {3}
    with pytest.raises(ValueError, match="at least 4 and at most 3"):
        planner_of(PlannerName.GOODPUT, 3, 4)


# That no field can hold an unverified token.

PLAIN = {int, float, bool, str, type(None)}


def leaves(kind):
    """The plain types that values of a type are made of; fails for a type that could hold anything."""
    if kind in PLAIN:
        return {kind}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return set().union(*(leaves(hints[field.name]) for field in fields(kind)))
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    assert arguments, f"{kind} could hold a token"
    return set().union(*(leaves(each) for each in arguments))


def test_a_history_is_made_of_counts_times_and_labels_and_cannot_be_changed():
    assert leaves(History) <= PLAIN
    # What may come in sequence are rounds, and of a round statistics that precede its tokens, and which of
    # siblings were accepted.
    hints = get_type_hints(Round)
    assert [name for name, kind in hints.items() if get_args(kind)] == ["max_q", "ranks"]
    assert get_args(hints["max_q"])[0] is float
    with pytest.raises(FrozenInstanceError):
        History(1, 2).committed = 3


PLANNER = """
from collections.abc import Sequence
from cluster.scheduling.history import History
from cluster.scheduling.planner import Budget, Frontier

def plan(history: History) -> int:
    return history.{asked}

def admit(frontier: Frontier, budget: Budget) -> object:
    return frontier.{shown}
"""


def test_mypy_refuses_a_planner_that_asks_for_drafted_tokens(tmp_path):
    package = Path(cluster.scheduling.__file__).parent
    known = [str(package / f"{name}.py") for name in ("history", "planner", "cost", "calibration")]

    def complaints(asked, shown):
        snippet = tmp_path / f"planner_{asked}.py"
        snippet.write_text(PLANNER.format(asked=asked, shown=shown))
        # Nothing but these files is read: the types of drafts are not even within reach.
        flags = ["--strict", "--follow-imports=skip", "--explicit-package-bases"]
        flags += ["--cache-dir", str(tmp_path / "cache"), "--allow-subclassing-any"]
        return mypy.api.run([*flags, str(snippet), *known])[0]

    assert "Success" in complaints("committed", "next_max_q")
    refused = complaints("drafted_tokens", "tokens")
    assert '"History" has no attribute "drafted_tokens"' in refused
    assert '"Frontier" has no attribute "tokens"' in refused


# Rows that cost next to nothing, and rows that cost as much as steps.
CHEAP, DEAR = VerifyCost((1, 64), (0.1, 0.101)), VerifyCost((1, 2), (0.1, 0.2))
# The second of siblings was right wherever the first was not, and the block went on behind it.
RESCUED = (Round(4, 4, 4, True, (0.5,) * 4, 2, (0, 1, 0, 1), 0, 2.0),) * 20


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


def test_what_a_tree_is_expected_to_bring_is_what_siblings_add_to_a_chain():
    plain = outlook(History(50, 500, past(4, 4, 40)), 4)
    tree = outlook(History(50, 500, past(4, 4, 40)), 4, 2)
    # All first drafts are accepted: there is nothing to save, and twice the rows.
    assert tree.tokens == pytest.approx(plain.tokens, abs=0.1)
    assert tree.rows == pytest.approx([2 * rows for rows in plain.rows])
    chain, tree = (outlook(History(50, 500, RESCUED), 4, width) for width in (1, 2))
    # Half of the first drafts are, and then as a rule another.
    assert chain.tokens[4] < 2.2
    assert tree.tokens[4] > 3.5
    assert tree.tokens == tuple(sorted(tree.tokens))


def test_experience_of_siblings_is_shared_by_requests_of_a_domain():
    measured_so_far = Measurements(None)
    for _ in range(10):
        measured_so_far.decided("chat", "pool", RESCUED[0])
    known = measured_so_far.experience("chat", "pool")
    assert (known.tried, known.accepted, known.later_tried, known.later_right) == (40, 20, 20, 20)
    new, old = (History(50, 500, experience=each) for each in (known, Experience(40, 20, 20, 0)))
    assert outlook(new, 4, 2).tokens[4] > outlook(old, 4, 2).tokens[4]
