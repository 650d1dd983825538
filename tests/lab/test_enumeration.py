"""The enumeration itself, on procedures whose laws are known."""

from bisect import bisect_right

import pytest

from cluster.lab.enumeration import ChosenDraft, ChosenNoise, outcomes
from cluster.speculation.noise import Purpose
from cluster.speculation.proposal import SparseRow


def test_choices_multiply_and_leave_impossible_ways_out():
    found = outcomes(lambda run: (run.choose((1.0, 3.0)), run.choose((0.5, 0.0, 0.5))))
    assert found == {(0, 0): 0.125, (0, 2): 0.125, (1, 0): 0.375, (1, 2): 0.375}


def test_a_uniform_is_split_where_it_is_compared():
    def procedure(run):
        u = run.uniform("u")
        return (u * 0.5 < 0.1, u < 0.6, u >= 0.9, 2.0 * u > 1.9)

    found = outcomes(procedure)
    assert found == {
        (True, True, False, False): pytest.approx(0.2),
        (False, True, False, False): pytest.approx(0.4),
        (False, False, False, False): pytest.approx(0.3),
        (False, False, True, False): pytest.approx(0.05),
        (False, False, True, True): pytest.approx(0.05),
    }


def test_the_same_key_is_the_same_uniform_and_another_is_independent():
    same = outcomes(lambda run: (run.uniform("a") < 0.3, run.uniform("a") < 0.3))
    assert same == {(True, True): pytest.approx(0.3), (False, False): pytest.approx(0.7)}
    apart = outcomes(lambda run: (run.uniform("a") < 0.3, run.uniform("b") < 0.3))
    assert apart[(True, True)] == pytest.approx(0.09)


def test_thresholds_outside_the_interval_decide_without_a_branch():
    found = outcomes(lambda run: (run.uniform("u") < 1.5, run.uniform("u") < 0.0, run.uniform("u") < 1.0))
    assert found == {(True, False, True): 1.0}


def test_inverse_cumulative_draws_have_the_widths_of_their_steps():
    found = outcomes(lambda run: bisect_right([0.1, 0.1, 0.5], run.uniform("u") * 0.5))
    assert found == {0: pytest.approx(0.2), 2: pytest.approx(0.8)}
    row = SparseRow((4, 9), (0.25, 0.75))
    assert outcomes(lambda run: ChosenDraft(0, 0, run).draw(0, row)) == {4: 0.25, 9: 0.75}


def test_noise_is_keyed_as_the_shipped_one():
    def equal(one, other):
        found = outcomes(lambda run: (one(run) < 0.5, other(run) < 0.5))
        return (True, False) not in found

    def uniform(seed, base, purpose, index):
        return lambda run: ChosenNoise(seed, base, run).uniform(purpose, index)

    here = uniform(1, 2, Purpose.ACCEPT, 3)
    assert equal(here, uniform(1, 2, Purpose.ACCEPT, 3))
    for other in [(9, 2, Purpose.ACCEPT, 3), (1, 9, Purpose.ACCEPT, 3), (1, 2, Purpose.BONUS, 3)]:
        assert not equal(here, uniform(*other))
    assert not equal(here, uniform(1, 2, Purpose.ACCEPT, 4))
    assert not equal(
        lambda run: ChosenDraft(1, 2, run).uniform(0), lambda run: ChosenDraft(1, 3, run).uniform(0)
    )
