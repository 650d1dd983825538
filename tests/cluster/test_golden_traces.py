"""Golden traces of each way in which a request can go; that of a fallback is in test_serving.py, where the
drafter is taken away."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.client import Ask, RequestFailedError
from cluster.telemetry import names
from tests.cluster import golden
from tests.cluster.waiting import eventually

pytestmark = pytest.mark.cluster

REPEATING = "one two three one two three one two three one two"


def new():
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def arrived(cluster, traceparent, rounds=0):
    """The trace's spans once its root and all of its rounds are in, each round's drafts on both sides."""
    trace = traceparent.split("-")[1]

    def whole():
        """the trace has arrived"""
        spans = cluster.collector.trace(trace)
        seen = [(span.resource["service.name"], span.name) for span in spans]
        parents = {
            span.parent_span_id for span in spans if span.resource["service.name"] == "truedraft-drafter"
        }
        drafted = {
            span.span_id
            for span in spans
            if (span.resource["service.name"], span.name) == ("truedraft-verifier", names.SPAN_DRAFT)
            and span.attributes.get(names.DRAFT_TOKENS)
        }
        root = any(service == "truedraft-gateway" for service, _ in seen)
        # Each span's parent is in, the client's own aside: it counts as the client's otherwise.
        ids = {span.span_id for span in spans}
        root = root and len({span.span_id for span in spans if span.parent_span_id not in ids}) == 1
        complete = root and seen.count(("truedraft-verifier", names.SPAN_ROUND)) >= rounds
        return spans if complete and drafted <= parents else None

    return eventually(whole, 20)


@pytest.mark.parametrize(
    ("name", "fields", "lossless"),
    [
        ("strict", {"law": "coupled"}, True),
        ("lossy", {"law": "truncation:min_p", "law_params": {"min_p": 0.2}, "temperature": 1.0}, False),
    ],
)
def test_an_answer(cluster, name, fields, lossless):
    # Whether a request is drafted for is for the planner to say.
    for seed in range(20):
        traceparent = new()
        ask = Ask(**{"prompt": REPEATING, "temperature": 0.0, "max_tokens": 40, "seed": seed, **fields})
        provenance = cluster.client.answer(ask, traceparent).final.provenance
        if provenance.draft_tokens and provenance.lossless is lossless:
            break
    spans = arrived(cluster, traceparent, provenance.rounds)
    golden.check(name, spans)
    [root] = [span for span in spans if span.resource["service.name"] == "truedraft-gateway"]
    assert root.attributes[names.LOSSLESS] is lossless
    assert root.attributes[names.VERIFICATION_MODE] == fields["law"]
    assert root.attributes[names.CLAIM] == provenance.claim


def test_a_cancelled_request(cluster):
    ask = Ask(prompt=REPEATING, temperature=1.0, max_tokens=400, seed=11)
    for _ in range(20):
        traceparent = new()
        stream = cluster.client.stream(ask, traceparent)
        next(stream)
        stream.close()
        spans = arrived(cluster, traceparent)
        # An answer may be whole before its end is heard of.
        if any(event.name == "cancelled" for span in spans for event in span.events):
            break
    golden.check("cancelled", spans, only_root=True)


def test_a_request_that_is_refused_for_want_of_room(cluster):
    ask = Ask(prompt=REPEATING, temperature=1.0, max_tokens=100, seed=11)
    parents = [new() for _ in range(40)]

    def refused(parent):
        try:
            cluster.client.answer(ask, parent)
        except RequestFailedError as error:
            return error.code == "RESOURCE_EXHAUSTED"
        return False

    with ThreadPoolExecutor(len(parents)) as pool:
        outcomes = dict(zip(parents, pool.map(refused, parents), strict=True))
    parent = next(parent for parent, was in outcomes.items() if was)
    golden.check("refused", arrived(cluster, parent), only_root=True)
    # One root for each request, whatever became of it.
    for each in parents:
        spans = arrived(cluster, each)
        assert sum(span.resource["service.name"] == "truedraft-gateway" for span in spans) == 1


def test_a_request_that_is_not_allowed(cluster):
    traceparent = new()
    ask = Ask(prompt="x", law="collaborative:lenience", law_params={"lenience": 0.5})
    with pytest.raises(RequestFailedError):
        cluster.client.answer(ask, traceparent)
    golden.check("forbidden", arrived(cluster, traceparent))
