"""The life of a request in the gateway: what is streamed, what frees the verifier, what is recorded."""

import asyncio
import json
import logging

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from ray.serve.exceptions import BackPressureError

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.record import log
from cluster.gateway.service import GatewayService
from cluster.gateway.tenants import Doors
from cluster.speculation.noise import choice_seed
from cluster.speculation.request import Committed, Failed, Refused
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents
from truedraft.v1 import inference_pb2 as pb

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Bench:
    """A service over fake events, with what it traced and logged."""

    def __init__(self, caplog, *events, hang=False):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.events = FakeEvents(*events, hang=hang)
        self.sent = []
        self.service = GatewayService(
            SPEC, Characters(), self._verify, provider.get_tracer("test"), Doors(None)
        )
        self._caplog = caplog

    def _verify(self, request):
        self.sent.append(request)
        return self.events

    def ask(self, **fields):
        request = pb.GenerateRequest(**{"prompt": "hi", **fields})
        return self.service.answer(request, [("traceparent", TRACEPARENT), ("x-bin", b"\0")])

    async def all(self, **fields):
        return [message async for message in self.ask(**fields)]

    @property
    def span(self):
        [span] = self.exporter.get_finished_spans()
        return span

    @property
    def line(self):
        [record] = [record for record in self._caplog.records if record.name == log.name]
        return json.loads(record.getMessage())


@pytest.fixture
def bench(caplog):
    caplog.set_level(logging.INFO, log.name)
    return lambda *events, hang=False: Bench(caplog, *events, hang=hang)


async def test_an_answer_is_streamed_and_recorded(bench):
    run = bench(Committed("he", (1,)), Committed("llo", (2,)), FINISHED)
    *deltas, answer = await run.all(domain="coding", seed=7)
    assert [(delta.text, delta.law) for delta in deltas] == [("he", "coupled"), ("llo", "coupled")]
    assert answer.provenance.claim == "exact-law"
    assert answer.id == run.sent[0].request_id == run.line["request_id"]
    assert not run.events.cancelled

    assert run.span.name == "text_completion toy"
    assert run.span.kind.name == "SERVER"
    assert format(run.span.context.trace_id, "032x") == TRACEPARENT.split("-")[1]
    assert format(run.span.context.span_id, "016x") == run.sent[0].traceparent.split("-")[2]
    assert run.span.attributes["truedraft.verification.mode"] == "coupled"
    assert run.span.attributes["truedraft.lossless"] is True
    assert run.span.attributes["gen_ai.usage.output_tokens"] == 2

    assert run.line["outcome"] == "finished"
    assert run.line["trace_id"] == TRACEPARENT.split("-")[1]
    assert run.line["domain"] == "coding"
    assert run.line["provenance"]["seed"] == "7"
    assert 0 <= run.line["seconds_to_first_token"] <= run.line["seconds"]


async def test_messages_are_a_chat(bench):
    run = bench(FINISHED)
    await run.all(prompt="", messages=[pb.ChatMessage(role="user", content="x")])
    assert run.span.name == "chat toy"


async def test_invalid_requests_reach_no_verifier(bench):
    run = bench()
    with pytest.raises(RequestError, match="law 'x' is not served here") as caught:
        await run.all(law="x")
    assert caught.value.cause.grpc is grpc.StatusCode.INVALID_ARGUMENT
    assert run.sent == []
    assert run.span.attributes["error.type"] == "INVALID_ARGUMENT"
    assert run.span.status.status_code is StatusCode.UNSET
    assert (run.line["outcome"], run.line["field"]) == ("invalid", "law")


async def test_a_lossy_law_that_is_not_allowed_is_denied_and_not_invalid(bench):
    run = bench()
    with pytest.raises(RequestError, match="lossy and this deployment does not allow it") as caught:
        await run.all(law="truncation:typical")
    assert caught.value.cause.grpc is grpc.StatusCode.PERMISSION_DENIED
    assert run.sent == []
    assert run.span.attributes["error.type"] == run.line["error"] == "PERMISSION_DENIED"


@pytest.mark.parametrize("refusal", [Refused("the queue is full"), BackPressureError(1, 1)])
async def test_a_full_verifier_refuses(bench, refusal):
    run = bench(refusal)
    with pytest.raises(RequestError) as caught:
        await run.all()
    assert caught.value.cause.grpc is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(caught.value) in ("The queue is full.", "The verifiers are busy; try again later.")
    assert run.line["outcome"] == "refused"
    assert [event.name for event in run.span.events] == ["refused"]
    assert run.span.attributes["error.type"] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("failure", "code", "sentence"),
    [
        (Failed("the step failed"), grpc.StatusCode.INTERNAL, "The step failed."),
        (RuntimeError("secret"), grpc.StatusCode.INTERNAL, "The request failed inside the cluster"),
    ],
)
async def test_failures_are_one_sentence(bench, failure, code, sentence):
    run = bench(Committed("he", (1,)), failure)
    with pytest.raises(RequestError, match=sentence) as caught:
        await run.all()
    assert caught.value.cause.grpc is code
    assert "secret" not in str(caught.value)
    assert run.line["outcome"] == "failed"
    assert run.span.status.status_code is StatusCode.ERROR


async def test_no_verifier_takes_it_up(bench):
    run = bench(hang=True)
    with pytest.raises(RequestError, match=r"No verifier took up the request within 0\.3 s") as caught:
        await run.all()
    assert caught.value.cause.grpc is grpc.StatusCode.UNAVAILABLE
    assert run.events.cancelled


async def test_a_client_that_leaves_while_waiting(bench):
    run = bench(Committed("he", (1,)), hang=True)
    task = asyncio.create_task(run.all())
    await run.events.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.events.cancelled
    assert run.line["outcome"] == "cancelled"
    assert [event.name for event in run.span.events] == ["cancelled"]


async def test_a_client_that_leaves_between_messages(bench):
    run = bench(Committed("he", (1,)), Committed("llo", (2,)), FINISHED)
    answer = run.ask()
    await anext(answer)
    await answer.aclose()
    assert run.events.cancelled
    assert run.line["outcome"] == "cancelled"


async def test_leaving_after_the_answer_changes_nothing(bench):
    run = bench(FINISHED)
    answer = run.ask()
    await anext(answer)
    await answer.aclose()
    assert not run.events.cancelled
    assert run.line["outcome"] == "finished"
    assert run.span.events == ()


async def test_several_answers_have_seeds_spans_and_lines_of_their_own(bench):
    run = bench(Committed("he", (1,)), FINISHED)
    messages = await run.all(n=3, seed=7)
    assert sorted(message.index for message in messages) == [0, 0, 1, 1, 2, 2]
    assert len({request.request_id for request in run.sent}) == 3
    seeds = [request.seed for request in run.sent]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert seeds == [choice_seed(7, index) for index in range(3)]
    assert len(run.exporter.get_finished_spans()) == 3
    assert {span.attributes["truedraft.claim"] for span in run.exporter.get_finished_spans()} == {"exact-law"}


async def test_one_of_several_answers_that_fails_ends_them_all(bench):
    run = bench(Refused("the queue is full"))
    with pytest.raises(RequestError, match="The queue is full"):
        await run.all(n=2)
    assert len(run.exporter.get_finished_spans()) == 2


async def test_a_client_that_leaves_frees_every_one_of_several_answers(bench):
    run = bench(Committed("he", (1,)), hang=True)
    answer = run.ask(n=3)
    for _ in range(3):
        await anext(answer)
    await answer.aclose()
    assert run.events.cancelled
    assert {span.attributes["error.type"] for span in run.exporter.get_finished_spans()} == {"CANCELLED"}
    assert len(run.exporter.get_finished_spans()) == 3


async def test_more_than_the_gateway_takes_is_refused_and_frees_its_place(bench):
    run = bench(Committed("he", (1,)), hang=True)
    waiting = [run.ask() for _ in range(8)]
    for answer in waiting:
        await anext(answer)
    with pytest.raises(RequestError, match="its 8 requests already") as caught:
        await run.all()
    assert caught.value.reason is Reason.OVERLOADED
    for answer in waiting:
        await answer.aclose()
    assert run.service.in_flight == 0
