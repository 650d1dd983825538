"""What is measured while serving: costs that follow the machine, experience that fades."""

import pytest

from cluster.scheduling import Budget, DraftCost, Experience, Round, VerifyCost
from cluster.speculation.messages import DraftBlock
from verifier_service.measuring.measurements import Measurements
from verifier_service.measuring.pricing import Step
from verifier_service.target.profiling import profile

COST = VerifyCost((1, 4, 8), (0.1, 0.2, 0.3), 1e-6)


def step(measured, decoding, rows, keys, tokens, seconds, besides=0.0, asked=None):
    """A step whose forward took so many seconds, and `besides` what came before it."""
    sequences = min(decoding, rows)
    measured.stepped(decoding, tokens, seconds, Step(sequences, rows, keys, seconds + besides, asked or {}))


def test_steps_correct_the_points_on_both_sides_and_no_others():
    measured = Measurements(COST)
    for _ in range(200):
        step(measured, decoding=2, rows=6, keys=1000, tokens=3, seconds=0.5)
    low, *rest = measured.verify.seconds
    assert low == 0.1
    assert measured.verify.of(6, 1000) == pytest.approx(0.5, rel=0.05)
    assert all(value > old for value, old in zip(rest, COST.seconds[1:], strict=True))
    assert measured.rows_per_sequence == pytest.approx(3.0, rel=0.01)
    assert measured.tokens_per_sequence == pytest.approx(1.5, rel=0.01)


def test_one_slow_step_moves_little():
    measured = Measurements(COST)
    step(measured, decoding=1, rows=1, keys=0, tokens=1, seconds=100.0)
    assert measured.verify.of(1) <= 0.1 * 1.1 + 1e-12


def test_beyond_the_last_point_it_alone_is_corrected():
    measured = Measurements(COST)
    step(measured, decoding=1, rows=50, keys=0, tokens=1, seconds=9.0)
    assert measured.verify.seconds[:2] == COST.seconds[:2]
    assert measured.verify.seconds[2] > 0.3


def test_what_comes_between_steps_is_their_overhead_and_no_rows():
    measured = Measurements(COST)
    for _ in range(100):
        step(measured, decoding=1, rows=1, keys=0, tokens=1, seconds=0.1, besides=0.01)
    assert measured.verify.seconds == pytest.approx(COST.seconds)
    assert measured.verify.of(4) == pytest.approx(0.21, rel=1e-4)
    # A client that takes its time once says little of the others.
    step(measured, decoding=1, rows=1, keys=0, tokens=1, seconds=0.1, besides=30.0)
    assert measured.verify.overhead <= 0.02


def test_steps_are_corrected_without_what_asking_takes_from_them():
    measured = Measurements(COST)
    for count in range(400):
        asked = {"apart": 1} if count % 8 else {}
        step(measured, 1, 1, 0, 1, 0.12 if asked else 0.1, asked=asked)
    assert measured.draft("apart") == DraftCost(0.0, 0.0, pytest.approx(0.02), 64)
    assert measured.verify.of(1) == pytest.approx(0.1, rel=0.01)
    assert measured.seconds_per_sequence == pytest.approx(0.02, rel=0.5)
    assert measured.summary()["overhead_ms"] == {"step": 0.0}
    # In the engine's own thread a block takes time that is counted as its wait.
    assert measured.draft("apart", apart=False) == DraftCost()


def test_who_is_planned_next_is_told_what_was_planned_since_the_last_step():
    measured = Measurements(COST)
    for _ in range(200):
        step(measured, decoding=4, rows=12, keys=0, tokens=8, seconds=0.3)
    assert measured.others(3) == pytest.approx((9.0, 6.0), rel=0.01)
    # One of the others stops drafting, another one begins.
    measured.replanned((4.0, 3.0), (1.0, 1.0))
    assert measured.others(3) == pytest.approx((6.0, 4.0), rel=0.01)
    measured.replanned(None, (5.0, 3.0))
    assert measured.others(3) == pytest.approx((8.0, 5.0), rel=0.01)
    measured.replanned((5.0, 3.0), (5.0, 3.0))
    # Steps tell of it sooner or later, and then it is not counted twice.
    for _ in range(200):
        step(measured, decoding=4, rows=11, keys=0, tokens=7, seconds=0.3)
    assert measured.others(4) == pytest.approx((11.0, 7.0), rel=0.01)
    # A sequence has a row and gets a token, whatever was expected.
    measured.replanned((90.0, 90.0), (1.0, 1.0))
    assert measured.others(3) == (3.0, 3.0)


def test_waits_are_means_with_the_drafters_own_time_apart():
    measured = Measurements(COST)
    for _ in range(100):
        measured.waited("one", 4, 0.5, 0.2)
    assert measured.draft("one").base == pytest.approx(0.3)
    assert measured.draft("one").of(8) == pytest.approx(0.7)
    assert measured.draft("other").of(8) == 0.0
    assert measured.summary()["wait_ms"] == {"one": pytest.approx(300.0)}
    assert measured.summary()["asking_ms"] == {"one": 0.0}
    assert measured.summary()["step_ms"]["4"] == 200.0


def test_one_that_waited_for_a_drafter_that_was_starting_is_soon_forgotten():
    measured = Measurements(COST)
    measured.waited("one", 4, 5.0, 0.0)
    for _ in range(20):
        measured.waited("one", 4, 0.1, 0.0)
    assert measured.draft("one").base < 0.4


def test_experience_is_by_domain_and_drafter_and_fades():
    measured = Measurements(None)
    for _ in range(500):
        measured.decided("code", "one", Round(4, 4, 4, max_q=(0.9,) * 4))
    for _ in range(200):
        measured.decided("code", "one", Round(4, 4, 0, max_q=(0.9,) * 4))
    known = measured.experience("code", "one")
    assert known.tried <= 200
    assert known.accepted / known.tried < 0.5
    assert measured.experience("code", "other").tried == 0
    assert measured.experience("prose", "one").tried == 0


def test_how_often_a_drafter_says_nothing_is_known_by_domain_where_it_was_not_cut():
    measured = Measurements(None)
    for past in (Round(4, 4, 1), Round(4, 2, 2), Round(4, 0), Round(4, 0), Round(4, 0, whole=False)):
        measured.decided("prose", "one", past)
    assert measured.experience("prose", "one") == Experience(4, 3, asked=4, given=2)


def test_admission_uses_figures_of_two_steps_ago():
    measured, seen = Measurements(COST), []
    for count in range(5):
        measured.step_begins([DraftBlock((1,), (0.1 * count,))])
        seen.append(measured.budget(rows=4, base_rows=1, keys=0.0))
        step(measured, 1, 1, 0, 1, 0.2)
    assert seen[0] == seen[1] == Budget(4)
    assert [each.survivals for each in seen[2:]] == [(0.0,), (0.1,), (0.2,)]
    costs = [each.cost.of(1) for each in seen[2:]]
    assert costs[0] == 0.1
    assert costs == sorted(costs)


def test_the_profile_of_a_real_target_rises_with_rows(loaded):
    cost = profile(loaded.model, 16)
    assert cost.rows == (1, 2, 4, 8, 16)
    assert list(cost.seconds) == sorted(cost.seconds)
    assert 0 < cost.of(1) < 1
    assert cost.per_key >= 0
