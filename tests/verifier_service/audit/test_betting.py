"""Martingales: fair on honest numbers for as long as one likes, rich on others, and not for ever poor."""

import math
import random
from functools import partial

import pytest

from verifier_service.audit.betting import (
    DECISIONS,
    EPOCH,
    RANKS,
    STAKES,
    Decision,
    Martingale,
    on_counts,
    on_lenience,
)


def honest(seed, count):
    generator = random.Random(seed)
    return [1.0 - 2.0 * generator.random() for _ in range(count)]


def tilted(seed, count, mean):
    """The same with a mean."""
    return [max(-1.0, min(1.0, x + mean)) for x in honest(seed, count)]


def test_the_wealth_is_the_mixture_of_products():
    values = [0.3, -0.8, 1.0, 0.0]
    martingale = Martingale(RANKS)
    martingale.observe(values)
    wealth = sum(math.prod(1 + stake * x for x in values) for stake in STAKES) / len(STAKES)
    assert martingale.log_wealth == pytest.approx(math.log(wealth))
    assert martingale.count == 4


def test_a_p_value_is_the_highest_wealth_ever_and_never_grows():
    martingale = Martingale(RANKS)
    martingale.observe([-1.0] * 12)
    low = martingale.p_value
    assert low < 0.1
    martingale.observe([1.0] * 12)
    assert martingale.p_value == low


def test_honest_numbers_pass_below_a_level_no_more_often_than_it_says():
    level, runs = 0.1, 400
    below = 0
    for seed in range(runs):
        martingale = Martingale(RANKS)
        martingale.observe(honest(seed, 400))
        below += martingale.p_value < level
    # At most a binomial(400, 0.1); above 64 once in ten thousand.
    assert below <= 64


def test_a_long_honest_run_raises_no_alarm():
    martingale = Martingale(RANKS)
    martingale.observe(honest(1, 200_000))
    assert martingale.p_value > 1e-3


@pytest.mark.parametrize("mean", [0.05, -0.05])
def test_either_tilt_is_found(mean):
    martingale = Martingale(RANKS)
    martingale.observe(tilted(2, 20_000, mean))
    assert martingale.p_value < 1e-6


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.98, 1.0 - 1e-16, 1.0])
@pytest.mark.parametrize("stake", STAKES)
@pytest.mark.parametrize("bet", [on_counts, on_lenience])
def test_bets_on_drafts_are_fair_and_leave_something(bet, stake, chance):
    kept, rejected = (bet(stake, Decision(is_kept, chance)) for is_kept in (True, False))
    assert chance * kept + (1.0 - chance) * rejected == pytest.approx(1.0, abs=1e-12)
    assert min(kept, rejected) >= 0.19


def decisions(seed, count, lenience=1.0):
    """Drafts of a weak drafter: most are next to hopeless, or next to certain."""
    generator = random.Random(seed)
    for _ in range(count):
        chance = generator.choice([0.02, 0.02, 0.4, 0.97, 0.98, 0.99, 1.0])
        yield Decision(generator.random() < min(chance / lenience, 1.0), chance)


def test_lenience_is_found_sooner_by_bets_of_its_own():
    both, counts = Martingale(DECISIONS), Martingale([partial(on_counts, stake) for stake in STAKES])
    for martingale in (both, counts):
        martingale.observe(decisions(1, 4000, lenience=0.9))
    assert both.p_value < 1e-6 < counts.p_value


def test_honest_decisions_raise_no_alarm():
    martingale = Martingale(DECISIONS)
    martingale.observe(decisions(2, 100_000))
    assert martingale.p_value > 1e-3


def test_a_fault_that_begins_late_is_found_in_the_next_epoch():
    martingale = Martingale(RANKS)
    martingale.observe(honest(3, EPOCH - 10_000))
    martingale.observe(tilted(4, 10_000, 0.1))
    assert martingale.p_value > 1e-6
    martingale.observe(tilted(5, 10_000, 0.1))
    assert martingale.p_value < 1e-6
