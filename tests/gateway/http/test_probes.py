"""Models, health and readiness over HTTP."""

from dataclasses import replace

import pytest

from cluster.speculation.request import Failed, Refused
from tests.gateway.helpers import SPEC
from tests.gateway.http.front import ANSWER, TEXT, Front


async def test_an_adapter_is_served_as_a_model():
    run = Front(*ANSWER, spec=replace(SPEC, adapters=("rhyme",)))
    listed = (await run.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["toy", "rhyme"]
    for model in ("toy", "rhyme"):
        assert (await run.client.get(f"/v1/models/{model}")).json()["id"] == model
        assert (await run.post("completions", TEXT | {"model": model})).json()["model"] == model
    assert [request.adapter for request in run.sent] == ["", "rhyme"]


async def test_the_models(front):
    run = front()
    listed = (await run.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["toy"]
    assert (await run.client.get("/v1/models/toy")).json()["id"] == "toy"
    assert (await run.client.get("/v1/models/a/b")).json()["error"]["code"] == "model_not_found"
    assert (await run.client.get("/healthz")).json() == {"status": "ok"}
    assert listed["data"][0]["truedraft"] == {
        "context_length": 100,
        "laws": ["none", "coupled", "truncation:min_p"],
        "default_law": "coupled",
    }


@pytest.mark.parametrize(
    ("events", "drafting", "code", "state"),
    [
        (ANSWER, "connected", 200, "ready"),
        (ANSWER, "in-process or off", 200, "ready"),
        (ANSWER, "connecting", 200, "degraded"),
        ((Refused("full"),), "connected", 200, "ready"),
        ((Failed("lost"),), "connected", 503, "unready"),
    ],
)
async def test_ready_is_a_token_that_was_generated(front, events, drafting, code, state):
    run = front(*events)
    run.drafting = drafting
    answers = [await run.client.get("/readyz") for _ in range(3)]
    assert [(each.status_code, each.json()["status"]) for each in answers] == [(code, state)] * 3
    # A good verdict is kept for a while, a bad one not.
    assert len(run.sent) == (1 if code == 200 else 3)
    assert {(request.max_tokens, request.law.name) for request in run.sent} == {(1, "none")}


async def test_an_alarm_of_live_audits_is_told_and_changes_no_state(front):
    run = front()
    run.audits = [{"law": "rejection", "alarm": True}, {"law": "coupled", "alarm": False}]
    answer = await run.client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "detail": "Audit alarm: tokens served under rejection do not fit the law.",
        "audit_alarm": True,
    }


async def test_without_an_alarm_nothing_is_said_of_audits(front):
    run = front()
    run.audits = [{"law": "rejection", "alarm": False}]
    assert (await run.client.get("/readyz")).json() == {"status": "ready", "detail": "", "audit_alarm": False}
