"""The HTTP front of the whole cluster, asked by the openai client and by hand."""

import json
import urllib.error
import urllib.request
from dataclasses import replace

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster.client import Ask
from cluster.gateway.limits import MAX_MESSAGE_BYTES, MAX_WATCHES
from tests.cluster.waiting import eventually
from truedraft.v1 import inference_pb2 as pb

pytestmark = pytest.mark.cluster
PROMPT = "one two one two one two"


@pytest.fixture(scope="module")
def client(cluster):
    base = f"http://{cluster.running.http_address}/v1"
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_http_and_grpc_give_one_answer(cluster, client):
    asked = Ask(prompt=PROMPT, temperature=0.8, seed=5, max_tokens=40)
    truth = cluster.client.answer(asked)
    whole = client.completions.create(model="tiny", prompt=PROMPT, temperature=0.8, seed=5, max_tokens=40)
    stream = client.completions.create(
        model="tiny", prompt=PROMPT, temperature=0.8, seed=5, max_tokens=40, stream=True
    )
    chunks = list(stream)
    assert whole.choices[0].text == truth.text == "".join(chunk.choices[0].text for chunk in chunks)
    assert whole.truedraft["token_ids"] == truth.token_ids
    assert [token for chunk in chunks[:-1] for token in chunk.truedraft["token_ids"]] == truth.token_ids
    assert {chunk.truedraft["law"] for chunk in chunks} == {"coupled"}
    assert whole.usage.completion_tokens == truth.final.usage.output_tokens
    assert whole.truedraft["claim"] == chunks[-1].truedraft["claim"] == "identical-tokens"


def test_parameters_arrive_and_speculation_changes_nothing(client):
    fields = {
        "prompt": PROMPT,
        "temperature": 0.7,
        "seed": 3,
        "max_tokens": 30,
        "n": 2,
        "logprobs": 2,
        "frequency_penalty": -1.0,
        "logit_bias": {"40": 5},
    }
    more = {"repetition_penalty": 1.1, "min_tokens": 20, "bad_words": ["the"], "stop_token_ids": [7]}
    answers = [
        client.completions.create(model="tiny", **fields, extra_body=more | {"truedraft": {"law": law}})
        for law in ("coupled", "none")
    ]
    drafted, plain = answers
    assert [c.text for c in drafted.choices] == [c.text for c in plain.choices]
    assert drafted.choices[0].text != drafted.choices[1].text
    for one, other in zip(drafted.choices, plain.choices, strict=True):
        assert one.truedraft["token_ids"] == other.truedraft["token_ids"]
        assert one.logprobs.token_logprobs == pytest.approx(other.logprobs.token_logprobs, abs=1e-3)
        assert len(one.logprobs.tokens) == len(one.truedraft["token_ids"])
    assert drafted.usage.completion_tokens == sum(len(c.truedraft["token_ids"]) for c in drafted.choices)


def test_an_answer_is_resumed(cluster, client):
    ask = Ask(prompt=PROMPT, temperature=0.8, seed=5, max_tokens=40, frequency_penalty=0.5)
    whole = cluster.client.answer(ask)
    rest = cluster.client.answer(replace(ask, resumed_output_ids=whole.token_ids[:13]))
    assert whole.token_ids[13:] == rest.token_ids
    assert whole.text.endswith(rest.text)


def test_an_answer_that_lost_its_end_alone_gets_it(cluster, client):
    """Over both fronts, streamed and not."""
    ask = Ask(prompt=PROMPT, temperature=0.8, seed=5, max_tokens=9)
    received = cluster.client.answer(ask).token_ids
    rest = cluster.client.answer(replace(ask, resumed_output_ids=received))
    assert (rest.text, rest.token_ids, rest.final.finish_reason) == ("", [], pb.FINISH_REASON_LENGTH)
    usage, provenance = rest.final.usage, rest.final.provenance
    assert (usage.output_tokens, provenance.rounds, provenance.seed) == (0, 0, 5)
    body = {"truedraft": {"resumed_output_ids": received}}
    fields = {"model": "tiny", "prompt": PROMPT, "temperature": 0.8, "seed": 5, "max_tokens": 9}
    whole = client.completions.create(**fields, extra_body=body)
    *_, last = client.completions.create(**fields, extra_body=body, stream=True)
    for answer in (whole, last):
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
        assert answer.truedraft["rounds"] == 0
    assert whole.usage.completion_tokens == 0


def test_the_openai_client_reads_provenance_headers_and_trace(cluster, client):
    trace = "0af7651916cd43dd8448eb211c80319d"
    raw = client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=3,
        extra_body={"truedraft": {"law": "none"}},
        extra_headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
    )
    assert raw.headers["truedraft-law"] == "none"
    assert json.loads(raw.headers["truedraft-provenance"])["trace_id"] == trace
    answer = raw.parse()
    assert answer.truedraft["effective_law"] == "none"
    assert answer.choices[0].message.role == "assistant"


def test_refusals_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="x", temperature=-1)
    assert (caught.value.code, caught.value.param) == ("invalid_argument", "temperature")
    with pytest.raises(openai.PermissionDeniedError) as denied:
        client.completions.create(
            model="tiny", prompt="x", extra_body={"truedraft": {"law": "truncation:typical"}}
        )
    assert denied.value.code == "law_not_allowed"
    assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_sequence(cluster, client, stream):
    def active():
        return cluster.running.info("verifier")["active"]

    eventually(lambda: active() == 0, 5)
    body = {"prompt": PROMPT, "temperature": 1.0, "max_tokens": 400, "seed": 11}
    if stream:
        answer = client.completions.create(model="tiny", **body, stream=True)
        next(iter(answer))
        eventually(lambda: active() == 1, 5)
        answer.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="tiny", **body, n=6, timeout=0.2)
    eventually(lambda: active() == 0, 2)


def test_messages_of_any_size_are_not_taken(cluster, client):
    with pytest.raises(grpc.RpcError) as unary:
        cluster.stub.Complete(pb.GenerateRequest(prompt="x" * MAX_MESSAGE_BYTES))
    with pytest.raises(grpc.RpcError) as streamed:
        list(cluster.stub.Generate(pb.GenerateRequest(prompt="x" * MAX_MESSAGE_BYTES)))
    for caught in (unary, streamed):
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(caught.value.trailing_metadata())["truedraft-reason"] == "payload_too_large"
    # Far beyond, Serve's proxy does not read it at all.
    with pytest.raises(grpc.RpcError) as unread:
        cluster.stub.Complete(pb.GenerateRequest(prompt="x" * (17 * MAX_MESSAGE_BYTES)))
    assert unread.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(openai.APIStatusError) as posted:
        client.completions.create(model="tiny", prompt="x" * MAX_MESSAGE_BYTES)
    assert posted.value.status_code == 413


@pytest.mark.parametrize("raw", [b"\x12\xff", b"\x12\x02\xff\xfe", b"\xff" * 64])
@pytest.mark.parametrize("method", ["Complete", "Generate", "ListModels"])
def test_what_is_no_message_or_no_utf_8_is_refused_in_words(cluster, method, raw):
    ask = cluster.channel.unary_stream if method == "Generate" else cluster.channel.unary_unary
    call = ask(f"/truedraft.v1.InferenceService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(b"\xff" if method == "ListModels" else raw))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["truedraft-reason"] == "malformed_request"
    assert "Error" not in caught.value.details()


def test_a_refusal_over_grpc_says_reason_and_field(cluster):
    with pytest.raises(grpc.RpcError) as caught:
        cluster.stub.Complete(pb.GenerateRequest(prompt="x", sampling=pb.Sampling(temperature=-1)))
    trailer = dict(caught.value.trailing_metadata())
    assert (trailer["truedraft-reason"], trailer["truedraft-field"]) == (
        "invalid_argument",
        "sampling.temperature",
    )


def test_probes_and_unknown_routes(cluster):
    address = f"http://{cluster.running.http_address}"
    for path in ("/healthz", "/-/healthz"):
        assert urllib.request.urlopen(f"{address}{path}", timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{address}/v1/embeddings", timeout=10)
    assert json.loads(caught.value.read())["error"]["code"] == "not_found"


def test_status_models_and_health(cluster):
    assert cluster.stub.ListModels(pb.ListModelsRequest()).models[0].id == "tiny"
    status = cluster.stub.GetStatus(pb.GetStatusRequest())
    assert status.state in (pb.STATE_READY, pb.STATE_DEGRADED)
    health = health_pb2_grpc.HealthStub(cluster.channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", "truedraft.v1.InferenceService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == serving
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == serving
    watch.cancel()
    ready = json.load(urllib.request.urlopen(f"http://{cluster.running.http_address}/readyz", timeout=30))
    assert ready["status"] in ("ready", "degraded")
    assert ready["audit_alarm"] is status.audit_alarm is False


def test_no_more_than_some_watch_at_a_time(cluster):
    """Each holds a place in the gateway, and is asked for no key."""
    health = health_pb2_grpc.HealthStub(cluster.channel)
    watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_WATCHES)]
    for watch in watches:
        next(watch)
    with pytest.raises(grpc.RpcError) as caught:
        next(health.Watch(health_pb2.HealthCheckRequest()))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for watch in watches:
        watch.cancel()

    def watched():
        try:
            again = health.Watch(health_pb2.HealthCheckRequest())
            next(again)
            again.cancel()
        except grpc.RpcError:
            return False
        return True

    eventually(watched, 10)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def test_the_openai_client_streams_a_call(cluster, client):
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "<<function= <tool_call> <<function="}],
        "tools": [
            {"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}}
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 150,
        "temperature": 1.0,
        "seed": 4,
    }
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion()
    plain = client.chat.completions.create(**asked, extra_body={"truedraft": {"law": "none"}})
    for answer in (streamed, plain):
        assert answer.choices[0].finish_reason == "tool_calls"
        [call] = answer.choices[0].message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    arguments = [each.choices[0].message.tool_calls[0].function.arguments for each in (streamed, plain)]
    assert arguments[0] == arguments[1]
    # And the same over gRPC.
    request = pb.GenerateRequest(
        messages=[pb.ChatMessage(role="user", content=asked["messages"][0]["content"])],
        tools=[pb.Tool(name="weather", parameters=json.dumps(WEATHER))],
        tool_choice=pb.ToolChoice(required=True),
        parallel_tool_calls=False,
        max_tokens=150,
        sampling=pb.Sampling(temperature=1.0),
        seed=4,
    )
    whole = cluster.stub.Complete(request)
    assert whole.answer.finish_reason == pb.FINISH_REASON_TOOL_CALLS
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [("weather", arguments[0])]


def test_law_and_domain_ride_in_metadata_and_headers(cluster, client):
    asked = pb.GenerateRequest(prompt=PROMPT, max_tokens=3)
    metadata = [("truedraft-law", "none"), ("truedraft-domain", "example")]
    whole, call = cluster.stub.Complete.with_call(asked, metadata=metadata)
    assert whole.answer.provenance.effective_law == "none"
    trailer = json.loads(dict(call.trailing_metadata())["truedraft-provenance"])
    assert trailer["effective_law"] == "none"
    told = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=3, extra_headers={"truedraft-law": "none"}
    )
    assert told.truedraft["effective_law"] == "none"
    asked.law = "coupled"
    with pytest.raises(grpc.RpcError) as caught:
        cluster.stub.Complete(asked, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(caught.value.trailing_metadata())["truedraft-field"] == "law"


def test_an_answer_in_a_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for law in ("coupled", "none"):
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=60,
            seed=4,
            response_format={"type": "json_schema", "json_schema": {"name": "ab", "schema": schema}},
            extra_body={"truedraft": {"law": law}},
        )
        content = json.loads(answer.choices[0].message.content)
        assert list(content) == ["a", "b"]
