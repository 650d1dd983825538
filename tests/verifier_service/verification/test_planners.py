"""Every planner that ships, under every strict law: the output law, integrated exactly.

Two rounds, of which the second is planned from what became of the first; and one step of two requests that
share a budget.
"""

from dataclasses import replace

import pytest

from cluster.lab import budgets
from cluster.lab.enumeration import outcomes
from cluster.lab.rounds import Request, first
from cluster.lab.world import constant_world, distance, random_world
from cluster.scheduling import (
    Budget,
    BudgetedPlanner,
    Calibration,
    DraftCost,
    FixedPlanner,
    GoodputPlanner,
    History,
    PlannerName,
    Round,
    VerifyCost,
)
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from tests.scheduling.helpers import Watched
from tests.scheduling.test_admission import Peeking

EXACT = 1e-12
LENGTH = 2
PLANNERS = {
    PlannerName.FIXED: FixedPlanner(LENGTH),
    PlannerName.GOODPUT: GoodputPlanner(LENGTH),
    PlannerName.BUDGETED: BudgetedPlanner(LENGTH),
}
# So steep that one accepted draft decides what is planned, and one flat row what is admitted.
COST = VerifyCost((1, 2, 3), (1.0, 1.42, 1.9))
# A second draft makes up for what the first costs too much, if it is likely enough.
DIP = VerifyCost((1, 2, 3), (1.0, 1.85, 2.1))
PAST = (Round(2, 2, 1), Round(2, 2, 0))
SHARED = VerifyCost((1, 2, 3, 4, 5, 6), (1.0, 1.0, 1.35, 1.7, 2.1, 2.5))
BUDGET = Budget(3, 2, 0.0, SHARED, survivals=(0.8, 0.7, 0.2))


def in_rounds(planner, law, world, plans, admissions, cost=COST):
    """The law of the first tokens of two rounds."""

    def play(run):
        request = Request(run, world, law, LENGTH)
        history = History(1, 100, PAST, verify=COST, draft=DraftCost(0.05))
        for _ in range(2):
            request.length = planner.plan(history).length
            block = request.draft()
            [drafts] = planner.admit([Watched(block.max_q)], Budget(LENGTH, cost=cost))
            verdict = request.verify(first(block, drafts))
            request.tokens += verdict.tokens
            plans.add(request.length)
            admissions.add(drafts)
            past = Round(request.length, drafts, verdict.accepted, whole=drafts == request.length)
            history = replace(history, rounds=(*history.rounds, past))
        return request.finish(LENGTH + 2)

    return distance(world.law(outcomes(play), LENGTH + 2), world.law({(): 1.0}, LENGTH + 2))


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("name", PlannerName)
def test_two_rounds_emit_the_targets_law(law, name):
    plans, admissions = set(), set()
    for seed in range(4):
        assert in_rounds(PLANNERS[name], law, random_world(seed, 2), plans, admissions) < EXACT
    # Otherwise nothing would depend on anything.
    if name is PlannerName.GOODPUT:
        assert len(plans) > 1
        assert len(admissions) > 1


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_a_planner_that_peeks_is_caught(law):
    worlds = [random_world(seed, 2) for seed in range(4)]
    found = [in_rounds(Peeking(LENGTH), law, world, set(), set(), DIP) for world in worlds]
    assert max(found) > 0.01


def sharing(planner, counts, budget=BUDGET):
    """One step's rule for two requests; notes what it decides."""

    def split(blocks, vocab):
        rows = planner.admit([Watched(block.max_q) for block in blocks], budget)
        counts.add(tuple(rows))
        return tuple(rows)

    return budgets.Budget("a planner's", split)


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
@pytest.mark.parametrize("name", PlannerName)
def test_two_requests_that_share_a_budget_keep_their_laws(law, name):
    counts = set()
    shared = sharing(PLANNERS[name], counts)
    assert max(budgets.error(worlds, law, shared) for worlds in budgets.pairs()[:5]) < EXACT
    if name is not PlannerName.FIXED:
        assert len(counts) > 1


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_two_requests_under_a_planner_that_peeks_are_caught(law):
    shared = sharing(Peeking(LENGTH), set(), Budget(LENGTH, cost=DIP))
    assert max(budgets.error(worlds, law, shared) for worlds in budgets.pairs()[:5]) > 0.01


# DSpark, arXiv 2607.05147, appendix A: a_1 = 0.8; a_2 = 0.9 after A and 0 after B.


@pytest.mark.parametrize(
    ("planner", "expected"),
    [(GoodputPlanner(2), (0.7, 0.3)), (Peeking(2), (0.85, 0.15))],
    ids=["first drop", "global"],
)
def test_the_golden_vector_of_dspark_through_admit(planner, expected):
    world = constant_world((0.7, 0.3), (0.5, 0.5))
    live = Budget(2, cost=VerifyCost((1, 2, 3), (1 / 1.0, 1 / 0.5, 1 / 0.45)), calibration=Calibration())

    def play(run):
        request = Request(run, world, REJECTION, 2)
        block = request.draft()
        confidences = (0.8, 0.9 if block.tokens[0] == 0 else 0.0)
        [drafts] = planner.admit([Watched(confidences)], live)
        return request.verify(first(block, drafts)).tokens

    assert world.law(outcomes(play), 1).tolist() == pytest.approx(expected, abs=1e-15)
