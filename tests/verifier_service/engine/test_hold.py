"""When drafters hear of what they are asked."""

import itertools

import pytest

from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED, NONE, REJECTION
from cluster.speculation.messages import BlockPlan
from tests.verifier_service.helpers import Port, Scripted, alone, answered
from verifier_service.drafting.local import LocalDrafting


class Heard(LocalDrafting):
    def __init__(self, drafter, log):
        super().__init__(drafter)
        self._log = log

    def hold(self):
        self._log.append("hold")

    def send(self):
        self._log.append("send")

    def request(self, ticket):
        self._log.append("ask")
        return super().request(ticket)


def test_drafters_hear_of_a_step_when_the_target_computes(engine_with, request_for, loaded, monkeypatch):
    log, run = [], loaded.model.run
    monkeypatch.setattr(loaded.model, "run", lambda *given: (log.append("compute"), run(*given))[1])
    quoting = Scripted(lambda text, length: [text[-1]] * length)
    alone(engine_with(Heard(quoting, log), planner=PlannerName.FIXED), request_for(max_tokens=12))
    computed = [index for index, entry in enumerate(log) if entry == "compute"]
    assert len(computed) > 3
    for index, following in itertools.pairwise(computed):
        # Held while it is planned, and told with nothing left to do but to compute.
        assert log[following - 1] == "send"
        assert log[index + 1] == "hold"


def test_a_drafter_that_is_waited_for_hears_at_once(engine_with, request_for):
    log = []

    class Late(Port):
        def hold(self):
            log.append("hold")

        def send(self):
            log.append("send")

        def request(self, ticket):
            log.append("ask")
            return True

    engine = engine_with(Late(lambda ticket: []), planner=PlannerName.FIXED, draft_deadline_s=0.01)
    alone(engine, request_for(max_tokens=6))
    assert "ask" in log
    assert all(log[index + 1] == "send" for index, entry in enumerate(log) if entry == "ask")


class Foreseeing(LocalDrafting):
    """Says that it foresees, and notes what it hears of."""

    foresees = apart = True

    def __init__(self, drafter):
        super().__init__(drafter)
        self.tickets = []

    def request(self, ticket):
        self.tickets.append(ticket)
        return super().request(ticket)


@pytest.mark.parametrize("law", [COUPLED, REJECTION, NONE], ids=str)
def test_a_drafter_that_foresees_hears_of_a_prompt_before_that_is_computed(engine_with, request_for, law):
    port = Foreseeing(Scripted(lambda text, length: [text[-1]] * length))
    request = request_for("the river", max_tokens=12, law=law, ignore_eos=True)
    engine = engine_with(port, planner=PlannerName.FIXED, block_length=3)
    answer = alone(engine, request)
    grants = [ticket for ticket in port.tickets if not ticket.length]
    if law != COUPLED:
        # Its blocks must not be drafted before their rounds, or there are none.
        assert grants == []
        return
    [grant] = grants
    assert port.tickets[0] is grant
    assert (grant.committed, grant.base, grant.ahead) == ((), len(request.prompt_ids), 3)
    first = port.tickets[1]
    assert (first.committed, first.base) == (tuple(answer.token_ids[:1]), grant.base + 1)


@pytest.mark.parametrize("hides", [True, False])
def test_nothing_is_granted_where_nothing_would_be_drafted(engine_with, request_for, hides):
    """The session at the drafter costs messages as well."""

    class Never:
        def plan(self, history):
            assert history.granted == (hides and history.committed == len(request.prompt_ids))
            return BlockPlan(0)

        def admit(self, frontiers, budget):
            return [0] * len(frontiers)

    port = Foreseeing(Scripted(lambda text, length: []))
    request = request_for("the river", max_tokens=5, ignore_eos=True)
    alone(engine_with(port, planned_by=Never(), draft_ahead=hides), request)
    assert port.tickets == []


@pytest.mark.parametrize("heard", [True, False])
def test_a_step_is_charged_for_the_blocks_of_which_drafters_hear(engine_with, request_for, heard):
    class Quiet(Port):
        def request(self, ticket):
            super().request(ticket)
            return heard

    port = Quiet(lambda ticket: [answered(ticket)])
    engine = engine_with(port, planner=PlannerName.FIXED)
    seen, stepped = [], engine.measurements.stepped
    engine.measurements.stepped = lambda *given: (seen.append(given[-1].asked.total()), stepped(*given))
    alone(engine, request_for(max_tokens=8, ignore_eos=True))
    assert set(seen[1:-1]) == {int(heard)}
