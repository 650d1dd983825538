"""What a collector receives of the whole cluster's requests: real exporters, a real OTLP server."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.client import Ask, RequestFailedError
from cluster.telemetry import names
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster

REPEATING = "one two three one two three one two three one two"


@pytest.fixture(autouse=True, scope="module")
def drafts_come(cluster):
    """Tests before these take drafters away, and a breaker gives them another chance only after a while."""

    def drafted():
        """a request is drafted for"""
        ask = Ask(prompt=REPEATING, temperature=0, max_tokens=20)
        return cluster.client.answer(ask).final.provenance.draft_tokens

    eventually(drafted, 90)


@pytest.fixture
def traceparent():
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def received(cluster, traceparent, *wanted, rounds=0):
    """The trace's spans once there is one of each (service, name) in `wanted` and all rounds are in."""
    trace = traceparent.split("-")[1]

    def complete(spans):
        mine = [(s.resource["service.name"], s.name) for s in spans if s.trace_id == trace]
        return set(wanted) <= set(mine) and sum(name == names.SPAN_ROUND for _, name in mine) >= rounds

    cluster.collector.wait_for(complete, timeout=20)
    return cluster.collector.trace(trace)


def only(spans, service, name):
    [span] = [s for s in spans if s.resource["service.name"] == service and s.name == name]
    return span


ROOT = ("truedraft-gateway", "text_completion tiny")
DRAFTER, DRAFTED = ("truedraft-drafter", "draft"), ("truedraft-verifier", "draft")


def test_one_trace_from_the_client_to_the_drafter(cluster, traceparent):
    ask = Ask(prompt=REPEATING, temperature=0, max_tokens=60, seed=5, domain="editing")
    answer = cluster.client.answer(ask, traceparent)
    provenance = answer.final.provenance
    assert provenance.draft_tokens > 0, "the test needs a request that is drafted for"
    spans = received(cluster, traceparent, ROOT, DRAFTER, DRAFTED, rounds=provenance.rounds)
    by_id = {span.span_id: span for span in spans}
    root = only(spans, *ROOT)
    assert root.parent_span_id == traceparent.split("-")[2]
    assert root.kind == "SERVER"

    # Up from a drafter's span: the verifier's draft, its round, the gateway's root.
    served = next(s for s in spans if (s.resource["service.name"], s.name) == DRAFTER)
    asked = by_id[served.parent_span_id]
    round_ = by_id[asked.parent_span_id]
    assert (served.kind, asked.kind) == ("SERVER", "CLIENT")
    assert (asked.resource["service.name"], round_.name) == ("truedraft-verifier", names.SPAN_ROUND)
    assert by_id[round_.parent_span_id] is root
    [replica] = cluster.running.replicas("drafter")
    assert served.resource["service.instance.id"].endswith(replica.replica)

    # The root says what the answer says.
    expected = {
        names.GEN_AI_OPERATION_NAME: "text_completion",
        names.GEN_AI_REQUEST_MODEL: "tiny",
        names.GEN_AI_REQUEST_MAX_TOKENS: 60,
        names.GEN_AI_REQUEST_TEMPERATURE: 0.0,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: answer.final.usage.output_tokens,
        names.VERIFICATION_MODE: "coupled",
        names.VERIFICATION_REQUESTED: "coupled",
        names.LOSSLESS: True,
        names.CLAIM: provenance.claim,
        names.ROUNDS: provenance.rounds,
        names.DRAFT_TOKENS: provenance.draft_tokens,
        names.ACCEPTED_TOKENS: provenance.accepted_tokens,
        names.ACCEPTANCE_LENGTH: provenance.acceptance_length,
        names.FALLBACK_ROUNDS: 0,
        names.DOMAIN: "editing",
    }
    assert {name: root.attributes[name] for name in expected} == expected
    assert {type(root.attributes[name]) for name in (names.ROUNDS, names.DRAFT_TOKENS)} == {int}

    # And its rounds add up to it.
    rounds = [s for s in spans if s.name == names.SPAN_ROUND]
    assert len(rounds) == provenance.rounds
    assert sum(s.attributes[names.DRAFT_TOKENS] for s in rounds) == provenance.draft_tokens
    assert sum(s.name == names.SPAN_VERIFY for s in spans) == provenance.rounds


def test_an_unsampled_client_is_not_traced_but_gets_its_trace_id(cluster):
    trace = secrets.token_hex(16)
    answer = cluster.client.answer(Ask(prompt="x", max_tokens=2), f"00-{trace}-{secrets.token_hex(8)}-00")
    assert answer.final.provenance.trace_id == trace
    assert cluster.collector.trace(trace) == []


def test_a_cancelled_request_says_so(cluster, traceparent):
    ask = Ask(prompt=REPEATING, temperature=1.0, max_tokens=400, seed=11)
    stream = cluster.client.stream(ask, traceparent)
    next(stream)
    stream.close()
    spans = received(cluster, traceparent, ROOT)
    root = only(spans, *ROOT)
    assert root.attributes[names.ERROR_TYPE] == "CANCELLED"
    assert names.EVENT_CANCELLED in {event.name for event in root.events}
    assert names.CLAIM not in root.attributes, "an answer that was not finished makes no claim"


def test_bad_input_says_so(cluster, traceparent):
    with pytest.raises(RequestFailedError):
        cluster.client.answer(Ask(prompt="x", top_p=0), traceparent)
    [root] = received(cluster, traceparent, ROOT)
    assert root.attributes[names.ERROR_TYPE] == "INVALID_ARGUMENT"
    assert names.VERIFICATION_MODE not in root.attributes, "nothing was sampled under any law"
    assert [(event.name, event.attributes) for event in root.events] == [
        (names.EVENT_REFUSED, {names.ERROR_REASON: "invalid_argument"})
    ]


def test_a_full_queue_refuses_in_words_and_says_so(cluster):
    asks = Ask(prompt=REPEATING, temperature=1.0, max_tokens=120, seed=11)
    parents = [f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01" for _ in range(40)]

    def ask(parent):
        try:
            return cluster.client.answer(asks, parent).token_ids
        except RequestFailedError as error:
            return error

    with ThreadPoolExecutor(len(parents)) as pool:
        outcomes = dict(zip(parents, pool.map(ask, parents), strict=True))
    refused = {parent: o for parent, o in outcomes.items() if isinstance(o, RequestFailedError)}
    answered = [o for o in outcomes.values() if not isinstance(o, RequestFailedError)]
    assert refused
    assert answered
    assert {error.code for error in refused.values()} == {"RESOURCE_EXHAUSTED"}
    assert all(tokens == answered[0] for tokens in answered), "load must not change a token"
    parent = next(iter(refused))
    root = only(received(cluster, parent, ROOT), *ROOT)
    assert root.attributes[names.ERROR_TYPE] == "RESOURCE_EXHAUSTED"
    assert [(event.name, event.attributes) for event in root.events] == [
        (names.EVENT_REFUSED, {names.ERROR_REASON: "overloaded"})
    ]
