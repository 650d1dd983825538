"""Golden vectors of the rules, and every rule known to bias as a control that must be caught."""

import pytest

from cluster.lab.enumeration import outcomes
from cluster.lab.report import shown
from cluster.lab.rounds import Request, first
from cluster.lab.rules import RULES, STRICT, best_goodput, first_drop_of_goodput, goodputs
from cluster.lab.table import EXACT, Cell, compute, compute_lossy, error
from cluster.lab.world import World, constant_world, distance, random_world
from cluster.speculation.law import BLOCK, COUPLED, REJECTION, Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.proposal import SparseRow

BY_NAME = {rule.name: rule for rule in RULES}


@pytest.fixture(scope="module")
def cells():
    return list(compute())


def test_each_cell_of_the_table_is_what_is_known_of_it(cells):
    wrong = [cell for cell in cells if not cell.as_expected]
    assert not wrong
    # Every rule that the mathematics marks as biased is there, and caught with room to spare.
    biased = {cell.rule for cell in cells if cell.biased and cell.law == "rejection"}
    assert len(biased) >= 10
    assert all(cell.tv > 0.02 for cell in cells if cell.biased)
    assert all(cell.tv < EXACT for cell in cells if cell.tv is not None and not cell.biased)


def test_coupled_is_exact_under_every_schedule(cells):
    assert all(cell.tv < EXACT for cell in cells if cell.law == "coupled" and cell.kind == "schedule")


def test_a_cell_that_is_not_as_expected_says_so():
    assert Cell("r", "schedule", "block", 0.2, biased=True).as_expected
    assert not Cell("r", "schedule", "block", 0.2, biased=False).as_expected
    assert not Cell("r", "schedule", "block", 1e-15, biased=True).as_expected
    assert Cell("r", "schedule", "block", None, biased=False).as_expected
    assert [shown(Cell("r", "noise", "block", tv, False)) for tv in (None, 1e-16, 0.1234)] == [
        "–",
        "exact",
        "0.123",
    ]


# DSpark, arXiv 2607.05147, appendix A: a_1 = 0.8; a_2 = 0.9 after A and 0 after B.
TARGET, PROPOSAL = (0.7, 0.3), (0.5, 0.5)


def dspark(choose_length):
    def play(run):
        request = Request(run, constant_world(TARGET, PROPOSAL), REJECTION, 2)
        block = request.draft()
        confidences = [0.8, 0.9 if block.tokens[0] == 0 else 0.0]
        return request.verify(first(block, choose_length(confidences))).tokens

    law = constant_world(TARGET, PROPOSAL).law(outcomes(play), 1)
    return law.tolist()


def test_the_golden_vector_of_dspark():
    assert goodputs([0.8, 0.9]) == pytest.approx([1.0, 0.9, 1.134])
    assert goodputs([0.8, 0.0]) == pytest.approx([1.0, 0.9, 0.81])
    assert dspark(best_goodput) == pytest.approx([0.85, 0.15], abs=1e-15)
    assert dspark(first_drop_of_goodput) == pytest.approx([0.7, 0.3], abs=1e-15)


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_a_deadline_on_blocks_that_their_content_delays_is_biased_and_waiting_is_not(law):
    """Late in 90 % of cases when the draft is B: dropping emits (0.835, 0.165)."""

    def play(run, wait):
        request = Request(run, constant_world(TARGET, PROPOSAL), law, 1)
        block = request.draft()
        late = block.tokens[0] == 1 and run.choose((0.1, 0.9)) == 1
        return request.verify(block if wait or not late else DraftBlock()).tokens

    for wait, expected in [(False, [0.835, 0.165]), (True, [0.7, 0.3])]:
        emitted = outcomes(lambda run, wait=wait: play(run, wait))
        assert constant_world(TARGET, PROPOSAL).law(emitted, 1).tolist() == pytest.approx(expected, abs=1e-15)


def test_draft_noise_keyed_by_position_biases_block_alone():
    rule = BY_NAME["two rounds, draft noise keyed by position"]
    worlds = [random_world(seed, 2) for seed in range(6)]
    assert max(error(world, REJECTION, rule) for world in worlds) < EXACT
    assert max(error(world, BLOCK, rule) for world in worlds) > 0.02


def test_a_law_that_looks_off_the_targets_path_is_seen(monkeypatch):
    """The shared noise of `coupled` must not hide a law that walks with the wrong row."""
    world = random_world(1, 2)
    shifted = World(2, world.target, world.proposal)
    monkeypatch.setattr(
        World, "rows", lambda self, prefix, drafts: world_rows(self, prefix, drafts).flip(0), raising=True
    )
    assert error(shifted, COUPLED, BY_NAME["fixed block"]) > 0.01


world_rows = World.rows


def test_shared_noise_accepts_as_often_as_published():
    """Daliri, Musco, Suresh: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), through draft and verify."""
    for seed in range(6):
        world = random_world(seed, 3)
        p, q = world.target(()), world.proposal(()).probs
        matched = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(3)) for i in range(3))
        tv = 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))
        assert matched >= (1 - tv) / (1 + tv)

        def accepted(run, world=world):
            request = Request(run, world, COUPLED, 1)
            return request.verify(request.draft()).accepted

        assert outcomes(accepted)[1] == pytest.approx(matched, abs=1e-14)


def test_rules_are_named_once_and_bias_laws_that_they_can_be_played_under():
    assert len(BY_NAME) == len(RULES)
    for rule in RULES:
        assert set(rule.biased) <= set(rule.laws) <= set(STRICT)


def test_a_budget_holds_in_the_table_of_lossy_laws():
    rows = compute_lossy()
    assert {each.law for each in rows} >= {"truncation:min_p", "truncation:typical", "collaborative:cactus"}
    for each in rows:
        assert each.tv > 0.0
        if "max_distortion" in each.params:
            assert each.tv == pytest.approx(each.params["max_distortion"], abs=1e-9)
        if "ceiling" in each.params:
            assert each.overshoot <= each.params["ceiling"] + 1e-12


def test_proposals_are_drawn_from_what_the_world_says():
    world = constant_world((0.5, 0.5), (0.25, 0.75))
    found = outcomes(lambda run: Request(run, world, Law("rejection"), 1).draft().tokens)
    assert found == {(0,): 0.25, (1,): 0.75}
    assert world.proposal((1, 0)) == SparseRow((0, 1), (0.25, 0.75))
    assert distance(world.law({(0,): 1.0}, 2), world.law({(): 1.0}, 2)) == pytest.approx(0.5)
