"""The output law of the shipped `verify`, integrated exactly over everything random in a round."""

import itertools
import math

import pytest
import torch

from cluster.lab.enumeration import ChosenNoise, outcomes
from cluster.lab.world import constant_world, distance, random_world
from cluster.scheduling import FixedPlanner, History
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.messages import DraftBlock
from tests.verifier_service.verification.helpers import drafted, emitted, error, target
from verifier_service.verification import block as block_law
from verifier_service.verification import kernel, verify

EXACT = 1e-12
SHAPES = [(2, 1), (2, 3), (3, 2), (4, 2), (4, 3)]
SEEDS = range(4)


def worlds(vocab):
    for seed in SEEDS:
        yield random_world(seed, vocab)
        yield random_world(seed, vocab, sharpness=4.0)
        yield random_world(seed, vocab, target_zeros=vocab // 2)
        yield random_world(seed, vocab, proposal_zeros=1)
        yield random_world(seed, vocab, target_zeros=1, proposal_zeros=vocab - 1)


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize(("vocab", "length"), SHAPES)
def test_strict_laws_emit_the_targets_law(law, vocab, length):
    # The largest shape takes most of the time and adds least.
    for world in list(worlds(vocab))[:: 1 if vocab**length < 60 else 4]:
        assert error(world, law, length) < EXACT


@pytest.mark.parametrize("law", [NONE, COUPLED, REJECTION, BLOCK], ids=str)
def test_a_round_without_drafts_emits_the_targets_law(law):
    for world in worlds(4):
        assert error(world, law, 0) < EXACT


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("remaining", [1, 2, 3, 9])
def test_strict_laws_are_exact_under_the_fixed_planner(law, remaining):
    def planner(run):
        return FixedPlanner(2).plan(History(committed=0, remaining=remaining)).length

    for world in worlds(3):
        assert error(world, law, 2, planner) < EXACT


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_two_rounds_with_noise_of_their_own_emit_the_targets_law(law):
    def two_rounds(run):
        tokens = ()
        for _ in range(2):
            block = drafted(run, world, 2, tokens)
            noise = ChosenNoise(seed=0, base=len(tokens), run=run)
            tokens += verify(law, world.rows(tokens, block.tokens), block, noise).tokens
        return tokens

    for seed in SEEDS:
        world = random_world(seed, 2)
        assert distance(world.law(outcomes(two_rounds), 4), target(world, 4)) < EXACT


def test_acceptance_is_the_published_one():
    """Rejection accepts 1 - TV at a position; block never keeps fewer drafts, and sometimes more."""
    gains = []
    for seed in range(12):
        world = random_world(seed, 3)
        row, proposal = world.target(()), world.proposal(())
        q = dict(zip(proposal.ids, proposal.probs, strict=True))
        overlap = math.fsum(min(p, q.get(token, 0.0)) for token, p in enumerate(row))
        kept = {}
        for law in (REJECTION, BLOCK):
            _, found = emitted(world, law, 1)
            assert math.fsum(v for k, v in found.items() if len(k) == 2) == pytest.approx(overlap, abs=EXACT)
            _, found = emitted(world, law, 3)
            kept[law] = math.fsum(len(k) * v for k, v in found.items())
        gains.append(kept[BLOCK] - kept[REJECTION])
    assert min(gains) > -EXACT
    assert max(gains) > 0.05


def test_block_is_rejection_on_one_hot_proposals():
    for seed in SEEDS:
        world = random_world(seed, 3)
        for tokens in itertools.product(range(3), repeat=3):
            block = DraftBlock(tokens, (1.0,) * 3)

            def law_of(law, block=block, world=world):
                rows = world.rows((), block.tokens)
                return outcomes(lambda run: verify(law, rows, block, ChosenNoise(0, 0, run)).tokens)

            one, other = law_of(REJECTION), law_of(BLOCK)
            assert one.keys() == other.keys()
            assert all(one[key] == pytest.approx(other[key], abs=EXACT) for key in one)


def test_equal_rows_accept_every_draft_in_every_run():
    world = random_world(0, 3)
    proposals = {
        prefix: world.proposal(prefix) for n in range(3) for prefix in itertools.product(range(3), repeat=n)
    }

    def same(prefix):
        return proposals[prefix].probs if prefix in proposals else world.target(prefix)

    twin = type(world)(3, same, world.proposal)
    for law in (REJECTION, BLOCK):
        assert error(twin, law, 2) < EXACT
        # Rounding leaves less than 1e-15 to a rejection.
        rejected = math.fsum(v for k, v in emitted(twin, law, 2)[1].items() if len(k) < 3)
        assert rejected < EXACT


# Faults planted in the shipped code: the integration must see each of them.


def residual_from_the_target(monkeypatch):
    monkeypatch.setattr(kernel, "draw_residual", lambda position, on, scale, u: kernel.draw(position.row, u))


def keep_the_proposal_in_the_residual(monkeypatch):
    plain = kernel.draw_residual
    monkeypatch.setattr(
        kernel,
        "draw_residual",
        lambda position, on, scale, u: plain(position, [x + 0.1 for x in on], scale, u),
    )


@pytest.mark.parametrize("fault", [residual_from_the_target, keep_the_proposal_in_the_residual])
def test_a_wrong_residual_is_caught(monkeypatch, fault):
    fault(monkeypatch)
    assert error(constant_world((0.7, 0.2, 0.1), (0.2, 0.4, 0.4)), REJECTION, 2) > 0.01


def test_a_wrong_acceptance_is_caught(monkeypatch):
    world = constant_world((0.7, 0.2, 0.1), (0.3, 0.4, 0.3))
    monkeypatch.setattr(block_law, "acceptance", lambda kept, reach, drafted: reach[kept])
    assert error(world, BLOCK, 2) > 0.01


def test_noise_shared_between_draft_and_residual_is_caught(monkeypatch):
    """A real engine's fault: 10.2 / 63.0 / 26.8 % in place of 10 / 60 / 30 %."""
    monkeypatch.setattr(ChosenNoise, "uniform", _draft_noise_for_residuals)
    assert error(constant_world((0.1, 0.6, 0.3), (0.6, 0.2, 0.2)), REJECTION, 1) > 0.01


def _draft_noise_for_residuals(self, purpose, index):
    if purpose == "residual":
        return self.run.uniform(("draft", 0, self.base, index))
    return self.run.uniform((purpose, self.seed, self.base, index))


# Trees.


def trees(nodes):
    """Every way to hang `nodes` drafts under a root, each after its parent."""
    return itertools.product(*[range(-1, k) for k in range(nodes)])


def tree_rows(world, tokens, parents):
    paths = [()]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent + 1], token))
    return torch.tensor([world.target(path) for path in paths], dtype=torch.float64)


@pytest.mark.parametrize("vocab", [2, 3])
def test_coupled_emits_the_targets_law_on_every_tree(vocab):
    world = random_world(5, vocab, target_zeros=1 if vocab == 3 else 0)
    for parents in trees(3):
        for tokens in itertools.product(range(vocab), repeat=3):
            block = DraftBlock(tokens, (1.0,) * 3, parents)
            rows = tree_rows(world, tokens, parents)

            def round_of(run, rows=rows, block=block):
                return verify(COUPLED, rows, block, ChosenNoise(0, 0, run)).tokens

            assert distance(world.law(outcomes(round_of), 4), target(world, 4)) < EXACT


def test_a_walk_down_a_tree_with_the_wrong_rows_is_caught():
    world = random_world(5, 3)
    block = DraftBlock((0, 1, 2), (1.0,) * 3, (-1, -1, 0))
    rows = tree_rows(world, block.tokens, block.parents)[[0, 2, 1, 3]]
    found = outcomes(lambda run: verify(COUPLED, rows, block, ChosenNoise(0, 0, run)).tokens)
    assert distance(world.law(found, 3), target(world, 3)) > 0.01
