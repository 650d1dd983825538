"""Evidence is fair to every strict law: by enumeration of whole rounds the expected wealth of any stake is 1.
The same bets with keys or positions that the rules forbid are not, nor are they fair to a faulty law."""

import math
from functools import partial

import pytest
import torch

from cluster.lab.enumeration import ChosenNoise, outcomes
from cluster.lab.rounds import Request, first
from cluster.lab.world import random_world
from cluster.speculation.catalogue import parse
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.proposal import SparseRow
from tests.verifier_service.verification.helpers import drafted
from verifier_service.audit.betting import on_counts, on_lenience, on_ranks
from verifier_service.audit.evidence import Evidence, evidence, ranks_by_target
from verifier_service.verification import verify

# An expectation over V of products that are linear in each V is their value at the middle.
MIDDLE = [0.5] * 8
EXACT = 1e-12
STAKES = (0.8, -0.8)
LENIENT = parse("collaborative:lenience", {"lenience": 0.5})


# What is seen and how it is bet on.
BETS = [("ranks", on_ranks), ("drawn", on_ranks), ("kept", on_counts), ("kept", on_lenience)]


def wealth(values, stake, bet=on_ranks):
    return math.prod(bet(stake, value) for value in values)


def expected(procedure):
    """Of a procedure that returns a wealth."""
    return sum(value * probability for value, probability in outcomes(procedure).items())


def one_round(law, seed, stake, seen, served=None, length=3, planner=None):
    """The expected wealth of a round under `law`, `served` being what really decides."""
    world = random_world(seed, 3, proposal_zeros=seed % 2)
    kind, bet = seen

    def procedure(run):
        n = length if planner is None else planner(run, world)
        block = drafted(run, world, n)
        rows = world.rows((), block.tokens)
        verdict = verify(served or law, rows, block, ChosenNoise(seed=0, base=0, run=run))
        return wealth(getattr(evidence(law, rows, block, verdict, MIDDLE), kind), stake, bet)

    return expected(procedure)


@pytest.mark.parametrize("seen", BETS)
@pytest.mark.parametrize("stake", STAKES)
@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_bets_on_a_round_are_fair(law, seed, stake, seen):
    assert abs(one_round(law, seed, stake, seen) - 1.0) < EXACT


@pytest.mark.parametrize("seen", BETS)
@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_they_are_fair_however_long_the_plan_is_if_it_does_not_look_at_drafts(law, seen):
    def planner(run, world):
        return 1 + run.choose([0.5, 0.5])

    assert abs(one_round(law, 5, 0.8, seen, planner=planner) - 1.0) < EXACT


@pytest.mark.parametrize("seen", [("ranks", on_ranks), ("kept", on_counts), ("kept", on_lenience)])
def test_they_are_not_fair_to_lenience(seen):
    gains = [one_round(REJECTION, 1, stake, seen, served=LENIENT) - 1.0 for stake in STAKES]
    assert max(gains) > 0.01


@pytest.mark.parametrize(("kind", "least"), [("ranks", 0.003), ("drawn", 0.05)])
@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_they_are_not_fair_to_a_drafter_that_records_another_row(law, kind, least):
    world = random_world(3, 3)

    def gained(stake, run):
        block = Request(run, world, law, 2).draft(recorded=_sharper)
        rows = world.rows((), block.tokens)
        verdict = verify(law, rows, block, ChosenNoise(seed=0, base=0, run=run))
        return wealth(getattr(evidence(law, rows, block, verdict, MIDDLE), kind), stake)

    assert max(expected(partial(gained, stake)) - 1.0 for stake in STAKES) > least


def _sharper(row):
    weights = torch.tensor(row.probs).pow(1 / 0.5).tolist()
    return SparseRow(row.ids, tuple(weights))


def test_corrections_alone_may_not_be_bet_on():
    world = random_world(2, 3)

    def procedure(run):
        block = drafted(run, world, 2)
        rows = world.rows((), block.tokens)
        verdict = verify(REJECTION, rows, block, ChosenNoise(seed=0, base=0, run=run))
        ranks = evidence(REJECTION, rows, block, verdict, MIDDLE).ranks
        return wealth(ranks[verdict.accepted :], -0.8)

    assert abs(expected(procedure) - 1.0) > 0.05


def coupled(seed, stake, key):
    """The expected wealth of a round under coupled, whose first draft shares the noise; key: from rows, block
    and verdict to what is bet on."""
    world = random_world(seed, 3)

    def procedure(run):
        request = Request(run, world, COUPLED, 2)
        block = request.draft()
        verdict = request.verify(first(block, 1))
        return wealth(key(world.rows((), block.tokens[:1]), block, verdict), stake)

    return expected(procedure)


def by_target(rows, block, verdict):
    return evidence(COUPLED, rows, block, verdict, MIDDLE).ranks


def draft_first(rows, block, verdict):
    """The first token's rank when the draft comes before all others."""
    p = float(rows[0][block.tokens[0]] / rows[0].sum())
    hit = verdict.tokens[0] == block.tokens[0]
    return [1.0 - 2.0 * (p / 2 if hit else p + (1.0 - p) / 2)]


def only_with_likely_drafts(rows, block, verdict):
    """Ranks of those rounds whose draft is the target's most probable token."""
    return by_target(rows, block, verdict) if block.tokens[0] == int(rows[0].argmax()) else []


@pytest.mark.parametrize("stake", STAKES)
@pytest.mark.parametrize("seed", range(4))
def test_under_coupled_ranks_by_the_target_are_fair(seed, stake):
    assert abs(coupled(seed, stake, by_target) - 1.0) < EXACT


@pytest.mark.parametrize("key", [draft_first, only_with_likely_drafts])
def test_under_coupled_the_draft_may_choose_neither_key_nor_position(key):
    assert max(abs(coupled(0, stake, key) - 1.0) for stake in STAKES) > 0.02


def at_random(run, rows, block):
    return run.choose([0.4, 0.6]) == 1


def for_what_they_say(run, rows, block):
    return block.tokens[0] != int(rows[0].argmax())


def falling_back(seed, stake, lost, *, fresh, bet_where=lambda gone: True):
    """The expected wealth of a round under coupled whose block may be lost, and which then has noise of its
    own, if `fresh`."""
    world = random_world(seed, 3)

    def procedure(run):
        request = Request(run, world, COUPLED, 1)
        block = request.draft()
        gone = lost(run, world.rows((), ()), block)
        left = DraftBlock() if gone else block
        rows = world.rows((), left.tokens)
        other = ChosenNoise(seed=1, base=0, run=run)
        verdict = verify(COUPLED, rows, left, other) if gone and fresh else request.verify(left)
        return wealth(by_target(rows, left, verdict), stake) if bet_where(gone) else 1.0

    return expected(procedure)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("lost", "fresh"), [(at_random, True), (at_random, False), (for_what_they_say, False)]
)
def test_bets_are_fair_to_fallbacks_that_keep_the_law(lost, fresh, seed):
    assert abs(falling_back(seed, 0.8, lost, fresh=fresh) - 1.0) < EXACT


def test_they_are_not_fair_to_fresh_noise_where_blocks_are_lost_for_what_they_say():
    assert max(falling_back(0, stake, for_what_they_say, fresh=True) - 1.0 for stake in STAKES) > 0.02


def test_rounds_without_a_block_alone_may_not_be_bet_on():
    """The drafts that are lost tell of the noise, which an honest verifier uses all the same."""
    gains = [
        falling_back(0, stake, for_what_they_say, fresh=False, bet_where=lambda gone: gone) - 1.0
        for stake in STAKES
    ]
    assert max(gains) > 0.02


def test_a_row_without_a_choice_is_not_bet_on():
    assert ranks_by_target(torch.tensor([[0.0, 1.0, 0.0]]), [1], [0.3]) == [None]


def test_a_token_that_a_row_excludes_ranks_last():
    assert ranks_by_target(torch.tensor([[0.0, 1.0, 0.0]]), [2], [0.3]) == [-1.0]


def test_ties_share_their_rank():
    rows = torch.tensor([[0.25, 0.5, 0.25]]).expand(3, -1)
    assert ranks_by_target(rows, range(3), [0.5] * 3) == pytest.approx([-0.5, 0.5, -0.5])


def test_rows_of_a_tree_are_those_of_the_path():
    rows = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7]])
    block = DraftBlock((0, 1), (1.0, 1.0), parents=(-1, -1))
    verdict = Verdict((1, 0), 1, path=(1,))
    found = evidence(COUPLED, rows, block, verdict, [0.5, 0.5])
    assert found.ranks == pytest.approx([1 - 2 * (0.6 + 0.2), 1 - 2 * (0.7 + 0.15)])


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_a_round_without_a_draft_is_not_bet_on(law):
    assert evidence(law, torch.tensor([[0.6, 0.4]]), DraftBlock(), Verdict((1,), 0), [0.5]) == Evidence()


def test_a_lossy_law_promises_nothing():
    rows, block, verdict = torch.tensor([[0.6, 0.4], [0.5, 0.5]]), DraftBlock((0,), (1.0,)), Verdict((1,), 0)
    assert evidence(REJECTION, rows, block, verdict, MIDDLE).ranks
    assert evidence(LENIENT, rows, block, verdict, MIDDLE) == Evidence()
