"""The audit benchmark on small vocabularies: silent where laws are exact, and every planted fault is found by
the audits that can see it and by no other."""

import random

import pytest
import torch

from cluster.bench.audit.simulation import ANEW, SCENARIOS, Places, simulate
from cluster.lab.world import row_of
from cluster.speculation.law import COUPLED

VOCAB = 40


@pytest.fixture(scope="module")
def places():
    """Peaked rows; the drafter's are the target's with noise and a long tail."""
    generator = random.Random(1)
    p = [torch.tensor(row_of(generator, VOCAB, 4, 2.5)) for _ in range(120)]
    q = [row * torch.tensor(row_of(generator, VOCAB, 0, 0.8)) for row in p]
    q = [0.6 * row / row.sum() + 0.4 / VOCAB for row in q]
    return Places(torch.stack(p), torch.stack(q))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.key)
def test_audits_find_what_they_should(places, scenario):
    slow = scenario.law == COUPLED
    if scenario.fault == ANEW:
        # A good drafter's first block is kept, and nothing is begun anew: one that knows nothing shows it.
        places = Places(places.p, torch.full_like(places.p, 1 / VOCAB))
    outcome = simulate(places, scenario, 3000 if slow or not scenario.fault else 6000)
    assert outcome.as_expected(scenario), outcome
    # This drafter is good enough.
    assert all(outcome.needed[name] for name in scenario.perhaps), outcome


def test_a_run_is_repeatable(places):
    assert simulate(places, SCENARIOS[0], 500) == simulate(places, SCENARIOS[0], 500)
