"""What a gateway counts of its requests, whatever becomes of them."""

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.gateway.errors import RequestError
from cluster.gateway.ledger import Closed, RequestLedger
from cluster.gateway.service import GatewayService
from cluster.gateway.tenants import Doors
from cluster.speculation.request import Committed, Refused
from cluster.telemetry.labels import Domains
from cluster.telemetry.metrics import exposition, start_metrics
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents
from tests.telemetry.scraping import series, total
from truedraft.v1 import inference_pb2 as pb


class Counting:
    """A service over fake events, with what it counted."""

    def __init__(self, *events):
        self._metrics = start_metrics("truedraft-gateway", "g#1")
        self.service = GatewayService(
            SPEC,
            Characters(),
            lambda request: FakeEvents(*events),
            NoOpTracer(),
            Doors(None),
            self._metrics.meter,
        )

    async def ask(self, **fields):
        request = pb.GenerateRequest(**{"prompt": "hi", "domain": "chat", **fields})
        return [message async for message in self.service.answer(request, [])]

    @property
    def series(self):
        return series(exposition([self._metrics.families()]).decode())


async def test_a_finished_request_is_counted_under_its_law_and_claim():
    counting = Counting(Committed("a", (1,)), Committed("b", (2,)), FINISHED)
    await counting.ask()
    found = counting.series
    claim = FINISHED.provenance.claim
    labels = {"outcome": "finished", "claim": claim.label, "lossless": str(claim.lossless).lower()}
    assert total(found, "truedraft_requests_total", **labels) == 1
    assert total(found, "gen_ai_server_request_duration_seconds_count", error_type="") == 1
    assert total(found, "gen_ai_server_time_to_first_token_seconds_count") == 1
    [line] = counting.service.ledger.recent
    assert line["outcome"] == "finished"


@pytest.mark.parametrize(
    ("events", "fields", "outcome"),
    [((Refused("full"),), {}, "refused"), ((), {"law": "magic"}, "invalid")],
)
async def test_a_request_that_is_not_answered_is_counted_as_such(events, fields, outcome):
    counting = Counting(*events)
    with pytest.raises(RequestError):
        await counting.ask(**fields)
    found = counting.series
    assert total(found, "truedraft_requests_total", outcome=outcome, claim="", lossless="") == 1
    assert total(found, "gen_ai_server_time_to_first_token_seconds_count") == 0


async def test_a_client_that_leaves_is_counted():
    counting = Counting(Committed("a", (1,)), FINISHED)
    answer = counting.service.answer(pb.GenerateRequest(prompt="hi"), [])
    await anext(answer)
    await answer.aclose()
    assert total(counting.series, "truedraft_requests_total", outcome="cancelled") == 1


def test_only_the_last_requests_are_kept_the_newest_first():
    ledger = RequestLedger("m", Domains())
    for n in range(150):
        ledger.closed(Closed("chat", "finished", "", "none", 0.1), {"n": n})
    assert [line["n"] for line in ledger.recent] == [*range(149, 49, -1)]


def test_what_live_acceptance_is_compared_with_is_a_series_of_its_own():
    metrics = start_metrics("truedraft-gateway", "g#1")
    RequestLedger("m", Domains(), metrics.meter, {"coding": 2.6, "chat": 1.9})
    found = series(exposition([metrics.families()]).decode())
    measured = {
        name: total(found, "truedraft_acceptance_measured", domain=name) for name in ("coding", "chat")
    }
    assert measured == {"coding": 2.6, "chat": 1.9}
    assert total(found, "truedraft_acceptance_measured") == 4.5
