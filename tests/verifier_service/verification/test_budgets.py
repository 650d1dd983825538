"""One budget of verify rows for two requests: who may look at what before a draft is verified or not.

Each request drafts two tokens; a rule says how many of each are verified. The pair's emitted law is
integrated exactly over all drafts and the verifier's noise.
"""

import pytest
import torch

from cluster.lab.enumeration import ChosenDraft, ChosenNoise, outcomes
from cluster.lab.world import distance, random_world
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import DraftBlock
from cluster.speculation.proposal import pack
from verifier_service.verification import verify

LENGTH = 2
# Steps per second by the drafts verified in all: a dip after the second, then nearly flat.
SPEED = (1.0, 0.93, 0.60, 0.58, 0.57)
PAIRS = [
    (random_world(seed, 2, sharpness=2.0), random_world(100 + seed, 2, sharpness=2.0)) for seed in range(8)
]


class Drafted:
    """One request's drafts with, for each, what was known before it was drawn and what it drew."""

    def __init__(self, world, request, run):
        self.world, self.request = world, request
        field = ChosenDraft(request, 0, run)
        self.tokens, self.rows, self.before, self.own = (), [], [], []
        for k in range(LENGTH):
            row = world.proposal(self.tokens)
            token = field.draw(k, row)
            self.rows.append(row)
            self.before.append(max(row.probs))
            self.own.append(row.probs[row.ids.index(token)])
            self.tokens += (token,)

    def verified(self, law, count, run):
        proposal = pack(self.rows[:count]) if count else None
        block = DraftBlock(self.tokens[:count], tuple(self.before[:count]), proposal=proposal)
        rows = self.world.rows((), block.tokens)
        return verify(law, rows, block, ChosenNoise(self.request, 0, run)).tokens


def survival(values):
    """Prefix products."""
    out = [1.0]
    for value in values:
        out.append(out[-1] * value)
    return out[1:]


def filled(pair, known, budget, speed=None):
    """Admits one position at a time, the likeliest to survive first, by what is `known` of the next position
    of each request; with a speed, until goodput first drops."""
    counts, reach, kept = [0, 0], [1.0, 1.0], 0.0
    while sum(counts) < budget:
        offers = [
            (reach[i] * known(drafted)[counts[i]], -i) for i, drafted in enumerate(pair) if counts[i] < LENGTH
        ]
        value, chosen = max(offers)
        if speed is not None:
            now, then = ((2 + gain) * speed[sum(counts) + n] for n, gain in ((0, kept), (1, kept + value)))
            if then < now:
                break
        counts[-chosen] += 1
        reach[-chosen] = value
        kept += value
    return tuple(counts)


def global_budget(pair):
    """The budget goes to the largest survivals of max q, each looked at when the one before is admitted."""
    return filled(pair, lambda drafted: drafted.before, 2)


def first_drop(pair):
    return filled(pair, lambda drafted: drafted.before, 2 * LENGTH, SPEED)


def best_goodput(pair):
    """The best of all splits by the confidences of all positions, also of those after the ones decided."""
    ways = [(a, b) for a in range(LENGTH + 1) for b in range(LENGTH + 1)]
    reach = [survival(drafted.before) for drafted in pair]
    return max(
        ways, key=lambda way: (2 + sum(sum(r[:n]) for r, n in zip(reach, way, strict=True))) * SPEED[sum(way)]
    )


def own_confidence(pair):
    """The budget goes to the drafted tokens' own probabilities."""
    return filled(pair, lambda drafted: drafted.own, 2)


def bias(law, rule, worlds):
    """TV between the pair's first LENGTH + 1 tokens and the two targets."""

    def step(run):
        pair = [Drafted(world, request, run) for request, world in enumerate(worlds)]
        counts = rule(pair)
        return tuple(drafted.verified(law, n, run) for drafted, n in zip(pair, counts, strict=True))

    joint = torch.zeros(2 ** (2 * LENGTH + 2), dtype=torch.float64)
    for (left, right), probability in outcomes(step).items():
        laws = [w.law({t: 1.0}, LENGTH + 1).flatten() for w, t in zip(worlds, (left, right), strict=True)]
        joint += probability * torch.outer(*laws).flatten()
    truth = torch.outer(*(w.law({(): 1.0}, LENGTH + 1).flatten() for w in worlds)).flatten()
    return distance(joint, truth)


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("rule", [global_budget, first_drop])
def test_budgets_that_look_at_the_next_position_alone_are_exact(law, rule):
    assert max(bias(law, rule, worlds) for worlds in PAIRS) < 1e-12


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("rule", [best_goodput, own_confidence])
def test_budgets_that_look_further_are_caught(law, rule):
    assert max(bias(law, rule, worlds) for worlds in PAIRS) > 0.01


@pytest.mark.parametrize("rule", [global_budget, first_drop, best_goodput, own_confidence])
def test_coupled_is_exact_under_every_budget(rule):
    assert max(bias(COUPLED, rule, worlds) for worlds in PAIRS) < 1e-12


def test_the_rules_verify_different_numbers():
    """Rules that always gave the same would prove nothing."""
    for rule in (global_budget, first_drop, best_goodput, own_confidence):
        counts = set()
        for worlds in PAIRS:

            def step(run, worlds=worlds, rule=rule):
                return rule([Drafted(world, request, run) for request, world in enumerate(worlds)])

            counts |= set(outcomes(step))
        assert len(counts) > 1
