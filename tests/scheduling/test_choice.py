"""With whom to draft: whoever promises most, as far as is known, and everybody is tried."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from cluster.scheduling import DraftCost, Experience, GoodputPlanner, History, Round, choose
from tests.scheduling.helpers import COST
from verifier_service.measuring.measurements import Measurements


def simulated(chances, costs, rounds=600, seed=0, pinned=""):
    """How often each pool is asked by one request, whose drafts are kept with these chances."""
    chance, measured, planner, asked = random.Random(seed), Measurements(None), GoodputPlanner(8), Counter()
    bare = History(50, 100_000, verify=COST)
    past = {name: replace(bare, draft=costs[name]) for name in chances}
    for _ in range(rounds):
        pinned = choose(past, 8, pinned, hides=False)
        k = planner.plan(past[pinned]).length
        accepted = 0
        while accepted < k and chance.random() < chances[pinned]:
            accepted += 1
        asked[pinned] += k > 0
        for name, history in past.items():
            if name == pinned and k:
                last = Round(k, k, accepted)
                measured.decided("", name, last)
                known = measured.experience("", name)
                past[name] = replace(history, rounds=(*history.rounds, last)[-32:], idle=0, experience=known)
            else:
                past[name] = replace(history, idle=history.idle + 1)
    return asked


@pytest.mark.parametrize("better", ["one", "other"])
def test_the_better_pool_is_found_and_kept(better):
    chances = {"one": 0.3, "other": 0.3} | {better: 0.85}
    free = {"one": DraftCost(), "other": DraftCost()}
    for seed in range(3):
        asked = simulated(chances, free, seed=seed)
        assert asked[better] > 0.85 * sum(asked.values())
        assert len(asked) == 2


def test_a_pool_that_takes_long_has_to_be_that_much_better():
    near, far = DraftCost(0.001), DraftCost(0.25)
    asked = simulated({"model": 0.7, "ngram": 0.6}, {"model": far, "ngram": near})
    assert asked["ngram"] > 0.9 * sum(asked.values())
    asked = simulated({"model": 0.95, "ngram": 0.05}, {"model": DraftCost(0.1), "ngram": near})
    assert asked["model"] > 0.85 * sum(asked.values())


def test_a_request_stays_unless_another_promises_clearly_more():
    def known(accepted):
        return History(50, 1000, verify=COST, experience=Experience(200.0, 200.0 * accepted))

    pools = {"one": known(0.80), "other": known(0.82)}
    assert choose(pools, 8, "", hides=False) == "other"
    assert choose(pools, 8, "one", hides=False) == "one"
    assert choose(pools | {"other": known(0.95)}, 8, "one", hides=False) == "other"


def test_before_anything_was_measured_the_first_is_chosen():
    pools = {"one": History(5, 10), "other": History(5, 10)}
    assert choose(pools, 8, "", hides=False) == "one"
    assert choose(pools, 8, "other", hides=False) == "other"
