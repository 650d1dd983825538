"""Budgets of verify rows that several requests share: the lab's rules, through the shipped `verify`."""

import pytest

from cluster.lab.budgets import BUDGETS, LENGTH, error, pairs
from cluster.lab.enumeration import outcomes
from cluster.lab.rounds import Request
from cluster.lab.table import EXACT
from cluster.speculation.law import BLOCK, COUPLED, REJECTION

PAIRS = pairs()
EXACTLY, BIASED = ([b for b in BUDGETS if bool(b.biased) is biased] for biased in (False, True))


def name(budget):
    return budget.name


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("budget", EXACTLY, ids=name)
def test_budgets_that_look_at_the_next_position_alone_are_exact(law, budget):
    assert max(error(worlds, law, budget) for worlds in PAIRS) < EXACT


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("budget", BIASED, ids=name)
def test_budgets_that_look_further_are_caught(law, budget):
    assert max(error(worlds, law, budget) for worlds in PAIRS) > 0.01


@pytest.mark.parametrize("budget", BUDGETS, ids=name)
def test_coupled_is_exact_under_every_budget(budget):
    assert max(error(worlds, COUPLED, budget) for worlds in PAIRS) < EXACT


@pytest.mark.parametrize("budget", BUDGETS, ids=name)
def test_the_rules_verify_different_numbers(budget):
    """Rules that always gave the same would prove nothing."""
    counts = set()
    for worlds in PAIRS:

        def step(run, worlds=worlds):
            requests = [Request(run, world, REJECTION, LENGTH) for world in worlds]
            return budget.split([request.draft(which) for which, request in enumerate(requests)], 2)

        counts |= set(outcomes(step))
    assert len(counts) > 1
