"""What asking costs a step, told from neighbouring steps: under drift, under noise, and from nothing else."""

import random

import pytest

from cluster.scheduling import VerifyCost
from verifier_service.measuring.pricing import Prices, Step

COST = VerifyCost((1, 4, 8), (0.1, 0.12, 0.14), 1e-6)


def priced(price, noise, count=400, sequences=1, every=8, drift=0.0, seed=0):
    """What is said of the price after steps of one row a sequence, in every eighth of which nobody asks."""
    chance, prices = random.Random(seed), Prices()
    for index in range(count):
        asked = {"apart": sequences} if index % every else {}
        pace = 1.0 + drift * index
        seconds = pace * (COST.of(sequences) + price * len(asked) * sequences) * chance.gauss(1.0, noise)
        prices.stepped(Step(sequences, sequences, 0, seconds, asked), COST)
    return prices.of("apart")


def test_the_price_is_found_while_the_machine_gets_slower():
    assert priced(0.015, 0.0) == pytest.approx(0.015)
    # Half as slow again in the end, which is more than the price.
    assert priced(0.015, 0.01, drift=0.5 / 400) == pytest.approx(0.015 * 1.4, rel=0.3)
    assert priced(0.004, 0.01, sequences=8) == pytest.approx(0.004, rel=0.3)


def test_noise_alone_costs_next_to_nothing():
    found = [priced(0.0, 0.1, seed=seed) for seed in range(40)]
    # A step's noise is 10 ms.
    assert sum(found) / len(found) < 0.001
    assert sorted(found)[20] == 0.0


def test_a_slow_step_now_and_then_is_no_price():
    prices = Prices()
    for index in range(400):
        asked = {"apart": 1} if index % 8 else {}
        prices.stepped(Step(1, 1, 0, 0.1 + (1.0 if index % 10 == 3 else 0.0), asked), COST)
    assert prices.of("apart") == 0.0


def neighbours(first, second):
    """The price that two steps, again and again with an interruption, speak of."""
    prices = Prices()
    for _ in range(20):
        prices.stepped(first, COST)
        prices.stepped(second, COST)
        prices.interrupted()
    return prices.of("apart"), prices.compared("apart")


def test_only_like_steps_are_compared():
    plain, asked = Step(2, 2, 0, 0.1), Step(2, 2, 0, 0.13, {"apart": 1})
    assert neighbours(plain, asked) == (pytest.approx(0.03), 20)
    assert neighbours(asked, plain) == (pytest.approx(0.03), 20)
    assert neighbours(plain, Step(2, 2, 0, 0.16, {"apart": 2})) == (pytest.approx(0.03), 20)
    for other in (
        Step(2, 2, 0, 0.13),
        Step(2, 4, 0, 0.13, {"apart": 1}),
        Step(1, 2, 0, 0.13, {"apart": 1}),
        Step(2, 2, 0, 0.13, {"apart": 1}, clear=False),
        Step(2, 2, 0, 0.13, {"apart": 1, "another": 1}),
    ):
        assert neighbours(plain, other) == (0.0, 0)
    # Of what differs in keys the profile knows.
    assert neighbours(plain, Step(2, 2, 10_000, 0.14, {"apart": 1})) == (pytest.approx(0.03), 20)


def test_a_few_comparisons_say_nothing():
    prices = Prices()
    for asked in ({}, {"apart": 1}, {}, {"apart": 1}):
        prices.stepped(Step(1, 1, 0, 0.2 if asked else 0.1, asked), COST)
    assert (prices.of("apart"), prices.compared("apart")) == (0.0, 3)
    prices.stepped(Step(1, 1, 0, 0.1), COST)
    assert prices.asking({"apart": 3, "another": 2}) == pytest.approx(0.3)


def test_the_price_of_what_nobody_asks_for_is_forgotten_and_found_again():
    prices = Prices()

    def steps(count, every):
        for index in range(count):
            asked = {"apart": 1} if every and index % every else {}
            prices.stepped(Step(1, 1, 0, 0.1 + 0.02 * len(asked), asked), COST)

    steps(400, 8)
    assert prices.of("apart") == pytest.approx(0.02)
    steps(95, 0)
    assert prices.compared("apart") == 64
    steps(500, 0)
    assert (prices.of("apart"), prices.compared("apart")) == (0.0, 1)
    steps(100, 8)
    assert prices.of("apart") == pytest.approx(0.02)


def test_a_round_costs_a_message_as_often_as_there_is_one():
    """Where a drafter hears of one block in four, steps with and without differ by the whole price."""
    prices = Prices()
    for index in range(400):
        heard = index % 4 == 0
        prices.asked("apart", heard)
        prices.stepped(Step(1, 1, 0, COST.of(1) + 0.02 * heard, {"apart": int(heard)}), COST)
    assert prices.of("apart") == pytest.approx(0.005, rel=0.1)
    assert prices.asking({"apart": 1}) == pytest.approx(0.02)
    assert prices.asking({"apart": 0}) == 0.0
