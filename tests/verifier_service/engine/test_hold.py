"""When drafters hear of what they are asked."""

import itertools

from cluster.scheduling import PlannerName
from tests.verifier_service.helpers import Port, Scripted, alone
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
        super().request(ticket)


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

    engine = engine_with(Late(lambda ticket: []), planner=PlannerName.FIXED, draft_deadline_s=0.01)
    alone(engine, request_for(max_tokens=6))
    assert "ask" in log
    assert all(log[index + 1] == "send" for index, entry in enumerate(log) if entry == "ask")
