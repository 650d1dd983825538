"""Two drafter pools in one engine: the answer is the same, and the one that is right is asked."""

import pytest

from cluster.scheduling import PlannerName
from cluster.speculation.law import NONE
from cluster.speculation.messages import BlockPlan
from tests.verifier_service.helpers import Port, Scripted, accounted, alone, oracle
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftReply, Fallback


class Counting(LocalDrafting):
    def __init__(self, drafter):
        super().__init__(drafter)
        self.asked = 0

    def request(self, ticket):
        self.asked += 1
        super().request(ticket)


def wrong(text, length):
    return [(text[-1] + 1 + k) % 500 for k in range(length)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("first", ["right", "wrong"])
def test_the_pool_that_is_right_is_asked_and_the_tokens_are_the_same(
    engine_with, request_for, first, temperature
):
    request = request_for(temperature=temperature, max_tokens=200)
    plain = alone(engine_with(), request_for(temperature=temperature, max_tokens=200, law=NONE))
    pools = {
        "right": Counting(oracle([*request.prompt_ids, *plain.token_ids])),
        "wrong": Counting(Scripted(wrong)),
    }
    names = sorted(pools, key=lambda name: name != first)
    engine = engine_with(Pools({name: pools[name] for name in names}), planner=PlannerName.GOODPUT)
    answer = alone(engine, request)
    assert answer.token_ids == plain.token_ids
    assert accounted(answer).accepted_tokens > 100
    # Each is told what was committed while the other drafted, or it could not be right.
    assert pools["right"].asked > 2 * pools["wrong"].asked


def test_a_pool_that_is_gone_leaves_its_requests_to_the_other(engine_with, request_for):
    def gone(ticket):
        return [DraftReply(ticket.sequence, ticket.plan_id, None, fallback=Fallback.NO_DRAFTER)]

    request = request_for(max_tokens=120)
    plain = alone(engine_with(), request_for(max_tokens=120, law=NONE))
    right = LocalDrafting(oracle([*request.prompt_ids, *plain.token_ids]))
    engine = engine_with(Pools({"drafters": Port(gone), "local": right}), planner=PlannerName.GOODPUT)
    answer = alone(engine, request)
    assert answer.token_ids == plain.token_ids
    provenance = accounted(answer)
    assert [each.kind for each in provenance.drafters] == ["scripted"]
    assert provenance.accepted_tokens > 60


def test_pools_without_a_port_are_refused():
    with pytest.raises(ValueError, match="at least one port"):
        Pools({})


class Never:
    """Plans no draft, and notes after how many plain rounds it was asked."""

    def __init__(self):
        self.idle = []

    def plan(self, history):
        self.idle.append(history.idle)
        return BlockPlan(0)

    def admit(self, frontiers, budget):
        return [0] * len(frontiers)


def test_who_decodes_plainly_is_planned_for_again_when_the_load_has_changed(engine_with, request_for):
    planner = Never()
    engine = engine_with(LocalDrafting(Scripted(wrong)), planned_by=planner)
    alone(engine, request_for(max_tokens=40))
    assert planner.idle == [0, 32]
    planner.idle.clear()
    answer_all(engine, [request_for(max_tokens=40), request_for("the river", max_tokens=5)])
    assert planner.idle == [0, 0, 8, 32]
