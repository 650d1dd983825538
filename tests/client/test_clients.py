"""Both clients against a server that breaks off: resumed from what came, to a deadline, cancelled."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cluster.client import Ask, AsyncClient, Client, RequestFailedError
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc

TOKENS, END = [11, 12, 13, 14, 15, 16], "end"
TEXT = "11 12 13 14 15 16 end"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Service(inference_pb2_grpc.InferenceServiceServicer):
    """Streams TOKENS from where a request resumes, and END, which has no tokens; `script` has what each call
    does: the messages it gives before it ends with a status, None for all of them."""

    def __init__(self):
        self.asked, self.metadata, self.script = [], [], []
        self.left = threading.Event()

    def Generate(self, request, context):  # noqa: N802
        self.asked.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        left = threading.Event()
        context.add_callback(left.set)
        self.left = left
        count, code = self.script.pop(0) if self.script else (None, None)
        rest = [pb.Delta(text=f"{token} ", token_ids=[token], seed=7) for token in TOKENS]
        rest = [*rest[len(request.resumed_output_ids) :], pb.Delta(text=END, seed=7)]
        for delta in rest[:count]:
            yield pb.GenerateResponse(delta=delta)
        if code == "hang":
            left.wait(30)
        elif code is not None:
            context.set_trailing_metadata([("truedraft-reason", "verifier_lost")])
            context.abort(code, "The verifier was lost.")
        usage = pb.Usage(output_tokens=len(rest) - 1)
        yield pb.GenerateResponse(answer=pb.Answer(id="x", provenance=pb.Provenance(seed=7), usage=usage))


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def endpoint(service):
    server = grpc.server(ThreadPoolExecutor(4))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.fixture(params=["blocking", "asyncio"])
def answer(request, endpoint):
    """Asks by either client."""

    def blocking(ask, **terms):
        with Client(endpoint, **terms) as client:
            return client.answer(ask, "00-trace")

    def awaiting(ask, **terms):
        async def run():
            async with AsyncClient(endpoint, **terms) as client:
                return await client.answer(ask, "00-trace")

        return asyncio.run(run())

    return blocking if request.param == "blocking" else awaiting


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("cluster.client.resuming._FIRST_PAUSE_S", 0.01)


ASK = Ask(prompt="x", max_tokens=6)


def test_an_answer_and_what_goes_with_it(service, answer):
    got = answer(ASK, api_key="secret")
    assert (got.token_ids, got.text) == (TOKENS, TEXT)
    assert got.final.id == "x"
    [metadata] = service.metadata
    assert metadata["authorization"] == "Bearer secret"
    assert metadata["traceparent"] == "00-trace"


def test_it_is_resumed_from_what_came_with_the_seed_that_was_drawn(service, answer):
    service.script = [(2, UNAVAILABLE), (0, UNAVAILABLE), (3, UNAVAILABLE)]
    got = answer(ASK, retries=2)
    assert got.token_ids == TOKENS
    assert got.final.usage.output_tokens == len(TOKENS)
    assert [list(each.resumed_output_ids) for each in service.asked] == [
        [],
        TOKENS[:2],
        TOKENS[:2],
        TOKENS[:5],
    ]
    assert [each.HasField("seed") for each in service.asked] == [False, True, True, True]
    assert {each.seed for each in service.asked[1:]} == {7}


def test_of_an_answer_that_lost_its_end_no_text_comes_twice(service, answer):
    service.script = [(len(TOKENS) + 1, UNAVAILABLE), (1, UNAVAILABLE)]
    got = answer(ASK, retries=2)
    assert (got.token_ids, got.text, got.final.id) == (TOKENS, TEXT, "x")
    assert got.final.usage.output_tokens == len(TOKENS)
    assert [list(each.resumed_output_ids) for each in service.asked] == [[], TOKENS, TOKENS]


def test_without_progress_it_gives_up(service, answer):
    service.script = [(2, UNAVAILABLE), *[(0, UNAVAILABLE)] * 9]
    with pytest.raises(RequestFailedError, match="lost") as caught:
        answer(ASK, retries=3)
    assert (caught.value.code, caught.value.answered) == ("UNAVAILABLE", True)
    assert len(service.asked) == 4


def test_other_faults_are_not_tried_again(service, answer):
    service.script = [(2, grpc.StatusCode.INTERNAL)]
    with pytest.raises(RequestFailedError) as caught:
        answer(ASK, retries=3)
    assert caught.value.code == "INTERNAL"
    assert len(service.asked) == 1


def test_a_deadline_holds_for_all_attempts_together(service, answer):
    service.script = [(1, UNAVAILABLE), (1, "hang")]
    with pytest.raises(RequestFailedError) as caught:
        answer(ASK, retries=9, timeout=1.0)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert len(service.asked) == 2


def test_where_no_service_was_ever_seen_none_is_waited_for():
    with Client("127.0.0.1:1", retries=5) as client, pytest.raises(RequestFailedError) as caught:
        client.answer(ASK)
    assert str(caught.value) == "No service answers at 127.0.0.1:1."


def test_leaving_a_stream_cancels_the_request(service, endpoint):
    service.script = [(1, "hang")]
    with Client(endpoint) as client:
        stream = client.stream(ASK)
        next(stream)
        stream.close()
        assert service.left.wait(10)


async def test_cancelling_a_task_cancels_its_request(service, endpoint):
    service.script = [(1, "hang")]
    async with AsyncClient(endpoint) as client:
        task = asyncio.create_task(client.answer(ASK))
        while not service.asked:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(service.left.wait, 10)


async def test_many_answers_at_once_on_one_channel(service, endpoint):
    async with AsyncClient(endpoint) as client:
        answers = await asyncio.gather(*(client.answer(ASK) for _ in range(20)))
    assert [each.token_ids for each in answers] == [TOKENS] * 20


def test_a_value_that_cannot_be_sent_is_named(answer):
    with pytest.raises(RequestFailedError, match="seed"):
        answer(Ask(prompt="x", seed=-1))
