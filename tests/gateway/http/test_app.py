"""The HTTP front over a service whose verifier is made up: bodies, streams, errors, limits."""

import json

import httpx2
import pytest
from opentelemetry.trace import NoOpTracer

from cluster.gateway.errors import CAUSES, Reason
from cluster.gateway.http.app import create_app
from cluster.gateway.limits import MAX_MESSAGE_BYTES
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors
from cluster.speculation.request import Committed, Failed, Refused, TokenLogprob
from cluster.speculation.sampling import Sampling
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents

ANSWER = (Committed("he", (1,)), Committed("llo", (2,)), FINISHED)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}


class Front:
    """The routes, and the requests that reached the verifier."""

    def __init__(self, *events):
        self.events, self.sent, self.drafting = FakeEvents(*events), [], "connected"
        self.audits = []
        service = GatewayService(SPEC, Characters(), self._verify, NoOpTracer(), Doors(None))
        app = create_app(service, StatusProbe(service.generate, self._inspect))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://gateway")

    def _verify(self, request):
        self.sent.append(request)
        return self.events

    async def _inspect(self):
        quiet = {"drafting": "connected", "active": 1, "queued": 0, "audits": []}
        return [quiet, {"drafting": self.drafting, "active": 1, "queued": 2, "audits": self.audits}]

    async def post(self, path, body=None, **options):
        return await self.client.post(
            f"/v1/{path}", **({"json": body} if body is not None else {}), **options
        )

    async def chunks(self, path, body):
        answer = await self.post(path, body | {"stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return answer, [json.loads(line) for line in lines]


@pytest.fixture
def front():
    return lambda *events: Front(*(events or ANSWER))


async def test_a_completion(front):
    run = front()
    sampling = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "eta_cutoff": 0.01,
    }
    body = TEXT | sampling | {"seed": 7, "max_tokens": 5}
    answer = await run.post("completions", body | {"stop": "x", "truedraft": {"law": "none", "domain": "d"}})
    content = answer.json()
    assert answer.status_code == 200
    assert content["object"] == "text_completion"
    [choice] = content["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hello", "stop")
    assert content["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert content["truedraft"]["claim"] == "exact-law"
    assert content["truedraft"]["token_ids"] == [1, 2]
    assert json.loads(answer.headers["truedraft-provenance"])["seed"] == "7"
    assert answer.headers["truedraft-law"] == "coupled"
    [sent] = run.sent
    assert sent.sampling == Sampling(**sampling)
    assert (sent.seed, sent.max_tokens, sent.stop, sent.law.name, sent.domain) == (7, 5, ("x",), "none", "d")


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105]])
async def test_a_prompt_is_text_or_tokens(front, prompt):
    run = front()
    assert (await run.post("completions", {"prompt": prompt})).status_code == 200
    assert run.sent[0].prompt_ids == (104, 105)


async def test_a_chat(front):
    run = front()
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    messages = [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]
    content = (await run.post("chat/completions", {"messages": messages, "max_completion_tokens": 9})).json()
    assert content["object"] == "chat.completion"
    [choice] = content["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert run.sent[0].prompt_ids == tuple(b"<system>s<user>hi")
    assert run.sent[0].max_tokens == 9


@pytest.mark.parametrize(("path", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
async def test_a_stream_is_the_answer_in_pieces(front, path, body):
    answer, chunks = await front().chunks(path, body | {"stream_options": {"include_usage": True}})
    assert answer.headers["truedraft-law"] == "coupled"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    *pieces, last, usage = chunks
    choices = [piece["choices"][0] for piece in pieces]
    chat = path.startswith("chat")
    if chat:
        assert choices.pop(0)["delta"]["role"] == "assistant"
        del pieces[0]
    assert [choice["delta"]["content"] if chat else choice["text"] for choice in choices] == ["he", "llo"]
    assert [piece["truedraft"] for piece in pieces] == [
        {"law": "coupled", "token_ids": [1]},
        {"law": "coupled", "token_ids": [2]},
    ]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["truedraft"]["claim"] == "exact-law"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 4


TOLD = (
    Committed(
        "hé", (104, 195, 169), tuple(TokenLogprob(t, -1.0, ((t, -1.0), (33, -2.0))) for t in (104, 195, 169))
    ),
    FINISHED,
)


async def test_log_probabilities_of_a_completion(front):
    content = (await front(*TOLD).post("completions", TEXT | {"logprobs": 2})).json()
    told = content["choices"][0]["logprobs"]
    assert told["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert told["token_logprobs"] == [-1.0] * 3
    assert told["text_offset"] == [0, 1, 1]
    assert told["top_logprobs"][0] == {"h": -1.0, "!": -2.0}


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_chat(front, stream):
    run, body = front(*TOLD), CHAT | {"logprobs": True, "top_logprobs": 2}
    if stream:
        told = (await run.chunks("chat/completions", body))[1][1]["choices"][0]["logprobs"]
    else:
        told = (await run.post("chat/completions", body)).json()["choices"][0]["logprobs"]
    first = told["content"][0]
    assert (first["token"], first["bytes"], first["logprob"]) == ("h", [104], -1.0)
    assert [other["token"] for other in first["top_logprobs"]] == ["h", "!"]
    assert run.sent[0].logprobs == 2


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_several_answers(front, path):
    body = (TEXT if path == "completions" else CHAT) | {"n": 3, "seed": 7}
    content = (await front().post(path, body)).json()
    assert [choice["index"] for choice in content["choices"]] == [0, 1, 2]
    assert (content["usage"]["prompt_tokens"], content["usage"]["completion_tokens"]) == (2, 6)
    assert content["usage"]["total_tokens"] == 8
    run = front()
    _, chunks = await run.chunks(path, body)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1, 2}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert sum(chunk["choices"][0]["finish_reason"] == "stop" for chunk in chunks) == 3
    assert len({request.seed for request in run.sent}) == 3


async def test_controls_by_their_names_here(front):
    run = front()
    body = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "logit_bias": {"9": -100},
        "bad_words": ["no"],
        "min_tokens": 2,
        "stop_token_ids": [5],
        "ignore_eos": True,
        "truedraft": {"resumed_output_ids": [1]},
    }
    assert (await run.post("completions", TEXT | body)).status_code == 200
    [sent] = run.sent
    assert sent.controls.logit_bias == ((9, -100.0),)
    assert (sent.controls.repetition_penalty, sent.controls.min_tokens) == (1.2, 2)
    assert (sent.stop_ids, sent.ignore_eos, sent.resumed_ids) == (frozenset({5}), True, (1,))


@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}},
        {"type": "regex", "regex": "a+"},
        {"type": "text"},
    ],
    ids=lambda each: each["type"],
)
async def test_response_formats(front, format):
    run = front()
    assert (await run.post("chat/completions", CHAT | {"response_format": format})).status_code == 200
    assert bool(run.sent[0].grammar) == (format["type"] != "text")


async def test_a_response_format_must_be_whole(front):
    for format in ({"type": "regex"}, {"type": "json_schema"}, {"type": "json_object", "regex": "a"}):
        answer = await front().post("chat/completions", CHAT | {"response_format": format})
        assert answer.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("prompts", [["a", "bc"], [[97], [98, 99]]])
async def test_each_of_several_prompts_has_its_choices(front, prompts):
    run = front()
    content = (await run.post("completions", {"prompt": prompts, "n": 2, "seed": 7})).json()
    assert [choice["index"] for choice in content["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in content["choices"]] == ["hello"] * 4
    asked = sorted((bytes(request.prompt_ids), request.seed) for request in run.sent)
    # Each prompt's answers are those that it has alone.
    assert [prompt for prompt, _ in asked] == [b"a", b"a", b"bc", b"bc"]
    assert {seed for prompt, seed in asked if prompt == b"a"} == {
        seed for prompt, seed in asked if prompt == b"bc"
    }
    # Two prompts of two tokens each, as the verifier counts them, and four answers.
    counts = {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}
    assert content["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 2}}


async def test_several_prompts_in_one_stream(front):
    body = {"prompt": ["a", "bc"], "stream_options": {"include_usage": True}}
    _, chunks = await front().chunks("completions", body)
    texts = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "hello", 1: "hello"}
    assert chunks[-1]["usage"]["total_tokens"] == 8


@pytest.mark.parametrize(
    ("prompts", "code"),
    [
        (["a", "x" * 101], "context_length_exceeded"),
        (["a", ""], "invalid_argument"),
        ([[1], []], "invalid_argument"),
    ],
)
async def test_one_bad_prompt_refuses_all_of_them(front, prompts, code):
    answer = await front().post("completions", {"prompt": prompts})
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, "prompt")


CALLED = (
    Committed('Yes.\n<tool_call>\n{"name": "f", "argu', (1,)),
    Committed('ments": {"a": [', (2,)),
    Committed("1]}}\n</tool_call>", (3,)),
    FINISHED,
)
PIECES = [
    {
        "index": 0,
        "id": "call_ID_0",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    },
    {"index": 0, "function": {"arguments": '{"a": ['}},
    {"index": 0, "function": {"arguments": "1]}"}},
]


async def test_calls_are_apart_from_text(front):
    run = front(*CALLED)
    content = (await run.post("chat/completions", CHAT | {"tools": [TOOL]})).json()
    [choice] = content["choices"]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes.\n",
        "refusal": None,
        "tool_calls": [{"id": f"call_{run.sent[0].request_id}_0"} | call],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert choice["truedraft"]["token_ids"] == [1, 2, 3]
    assert bytes(run.sent[0].prompt_ids).startswith(b"<f><user>")


async def test_calls_are_streamed_in_pieces(front):
    run = front(*CALLED)
    _, chunks = await run.chunks("chat/completions", CHAT | {"tools": [TOOL]})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "Yes.\n"}
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    pieces[0]["id"] = pieces[0]["id"].replace(run.sent[0].request_id, "ID")
    assert pieces == PIECES
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    tokens = [token for chunk in chunks[1:-1] for token in chunk["truedraft"]["token_ids"]]
    assert tokens == [1, 2, 3]


async def test_the_same_text_without_tools_is_text(front):
    run = front(*CALLED)
    content = (await run.post("chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "none"})).json()
    message = content["choices"][0]["message"]
    assert "tool_calls" not in message
    assert message["content"].endswith("</tool_call>")
    assert bytes(run.sent[0].prompt_ids).startswith(b"<user>")
    assert run.sent[0].grammar == ""


async def test_an_answer_with_calls_may_be_sent_back(front):
    run = front(*CALLED)
    message = (await run.post("chat/completions", CHAT | {"tools": [TOOL]})).json()["choices"][0]["message"]
    gave = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "5"}
    body = {"messages": [*CHAT["messages"], message, gave], "tools": [TOOL]}
    assert (await run.post("chat/completions", body)).status_code == 200
    assert bytes(run.sent[1].prompt_ids).endswith(b"<assistant>Yes.\n<tool>5")


async def test_law_and_domain_may_come_in_headers(front):
    run = front()
    headers = {"truedraft-law": "none", "truedraft-domain": "d"}
    assert (await run.post("completions", TEXT, headers=headers)).status_code == 200
    assert (run.sent[0].law.name, run.sent[0].domain) == ("none", "d")
    for body, param in (
        ({"truedraft": {"law": "coupled"}}, "truedraft.law"),
        ({"truedraft": {"domain": "e"}}, "truedraft.domain"),
    ):
        refused = await run.post("completions", TEXT | body, headers=headers)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
    refused = await run.post("completions", TEXT, headers={"truedraft-lav": "none"})
    assert refused.json()["error"]["code"] == "unknown_parameter"


async def test_max_distortion_is_a_parameter_of_the_law(front):
    run = front()
    fields = {"law": "truncation:min_p", "law_params": {"min_p": 0.2}}
    assert (await run.post("completions", TEXT | {"truedraft": fields})).status_code == 200
    assert dict(run.sent[0].law.params) == {"min_p": 0.2}
    refused = await run.post("completions", TEXT | {"truedraft": {"max_distortion": 0.1}})
    assert refused.json()["error"]["param"] == "truedraft.law_params"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

BAD = [
    ("completions", TEXT | {"logit_bais": {}}, "unknown_parameter", "logit_bais"),
    ("completions", TEXT | {"truedraft": {"lav": "x"}}, "unknown_parameter", "truedraft.lav"),
    ("completions", TEXT | {"echo": True}, "unknown_parameter", "echo"),
    ("completions", TEXT | {"suffix": "x"}, "unknown_parameter", "suffix"),
    ("completions", TEXT | {"temperature": "hot"}, "malformed_request", "temperature"),
    ("completions", TEXT | {"temperature": -1}, "invalid_argument", "temperature"),
    ("completions", TEXT | {"top_k": -1}, "invalid_argument", "top_k"),
    ("completions", TEXT | {"top_k": 2**40}, "invalid_argument", "top_k"),
    ("completions", TEXT | {"seed": -1}, "invalid_argument", "seed"),
    ("completions", TEXT | {"logit_bias": {"x": 1}}, "invalid_argument", "logit_bias"),
    ("completions", TEXT | {"logit_bias": {"1": 1, "01": 1}}, "invalid_argument", "logit_bias"),
    ("completions", TEXT | {"logit_bias": {"9" * 5000: 1}}, "invalid_argument", "logit_bias"),
    ("completions", TEXT | {"best_of": 2}, "unknown_parameter", "best_of"),
    ("completions", TEXT | {"n": 99}, "invalid_argument", "n"),
    ("completions", TEXT | {"logprobs": 21}, "invalid_argument", "logprobs"),
    ("chat/completions", CHAT | {"top_logprobs": 2}, "invalid_argument", "top_logprobs"),
    ("completions", TEXT | {"max_tokens": 0}, "invalid_argument", "max_tokens"),
    ("completions", TEXT | {"max_tokens": 99}, "invalid_argument", "max_tokens"),
    ("completions", TEXT | {"model": "gpt"}, "model_not_found", "model"),
    ("completions", TEXT | {"truedraft": {"law": "rumour"}}, "invalid_argument", "truedraft.law"),
    ("completions", TEXT | {"truedraft": {"law": "truncation:typical"}}, "law_not_allowed", "truedraft.law"),
    ("completions", {"prompt": ["a"] * 65}, "invalid_argument", "prompt"),
    ("completions", {"prompt": ["a"] * 33, "n": 2}, "invalid_argument", "prompt"),
    ("completions", {"prompt": []}, "invalid_argument", "prompt"),
    (
        "completions",
        {"prompt": ["a", "b"], "truedraft": {"resumed_output_ids": [1]}},
        "invalid_argument",
        "truedraft.resumed_output_ids",
    ),
    ("completions", TEXT | {"tools": []}, "unknown_parameter", "tools"),
    ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, "invalid_argument", "tools[0].function"),
    ("chat/completions", CHAT | {"tools": [TOOL, TOOL]}, "invalid_argument", "tools"),
    ("chat/completions", CHAT | {"tool_choice": "auto"}, "invalid_argument", "tool_choice"),
    (
        "chat/completions",
        CHAT | {"tools": [TOOL], "tool_choice": "perhaps"},
        "unknown_parameter",
        "tool_choice",
    ),
    (
        "chat/completions",
        CHAT | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_argument",
        "tool_choice",
    ),
    (
        "chat/completions",
        CHAT | {"tools": [TOOL], "response_format": {"type": "json_object"}},
        "invalid_argument",
        "response_format",
    ),
    ("chat/completions", {"messages": [{"role": "user"}]}, "invalid_argument", "messages"),
    (
        "chat/completions",
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]},
        "invalid_argument",
        "messages",
    ),
    ("completions", {"prompt": [256]}, "invalid_argument", "prompt"),
    ("completions", {"prompt": ""}, "invalid_argument", "prompt"),
    ("completions", {"prompt": "x" * 101}, "context_length_exceeded", "prompt"),
    ("completions", {}, "invalid_argument", "prompt"),
    ("completions", [], "malformed_request", None),
    ("chat/completions", {"messages": []}, "invalid_argument", "prompt"),
    ("chat/completions", CHAT | {"functions": []}, "unknown_parameter", "functions"),
    (
        "chat/completions",
        CHAT | {"max_tokens": 1, "max_completion_tokens": 2},
        "invalid_argument",
        "max_tokens",
    ),
    (
        "chat/completions",
        {"messages": [{"role": "robot", "content": "x"}]},
        "invalid_argument",
        "messages",
    ),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "unknown_parameter",
        "messages[0].content[0].image_url",
    ),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), BAD, ids=[f"{c}-{p}" for _, _, c, p in BAD])
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_with_a_code_and_the_parameters_name(front, path, body, code, param, stream):
    run = front()
    answer = await run.post(path, body | {"stream": True} if stream and isinstance(body, dict) else body)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert answer.status_code == CAUSES[Reason(code)].http
    assert error["type"] == CAUSES[Reason(code)].kind
    assert answer.headers["truedraft-reason"] == code
    assert error["message"].endswith(".")
    assert run.sent == []


async def test_stream_options_are_for_streams(front):
    answer = await front().post("completions", TEXT | {"stream_options": {"include_usage": True}})
    assert answer.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b"[" * 100_000, b'{"prompt": "\\ud800"}'])
async def test_a_body_that_is_no_json_is_refused(front, content):
    answer = await front().post("completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_request"


async def test_null_is_the_same_as_absent(front):
    run = front()
    body = TEXT | dict.fromkeys(["temperature", "seed", "stop", "stream", "echo", "n", "truedraft", "model"])
    assert (await run.post("completions", body)).status_code == 200
    assert run.sent[0].sampling == Sampling()


async def test_routes_and_methods_that_are_not_there(front):
    run = front()
    assert (await run.client.get("/v1/chat/completions")).json()["error"]["code"] == "method_not_allowed"
    assert (await run.post("embeddings", {})).json()["error"]["code"] == "not_found"


async def test_a_body_beyond_the_limit_is_refused_unread(front):
    run = front()
    answer = await run.post("completions", {"prompt": "x" * MAX_MESSAGE_BYTES})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize("stream", [False, True])
async def test_overload_says_when_to_come_again(front, stream):
    answer = await front(Refused("the queue is full")).post("completions", TEXT | {"stream": stream})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "overloaded"


async def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(front):
    answer = await front(Committed("he", (1,)), Failed("lost")).post("completions", TEXT | {"stream": True})
    *_, last = [line for line in answer.text.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal"
    assert "[DONE]" not in answer.text


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
