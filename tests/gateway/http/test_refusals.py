"""What is refused over HTTP, and how faults are told."""

import json

import pytest

from cluster.gateway.errors import CAUSES, Reason
from cluster.gateway.limits import MAX_MESSAGE_BYTES
from cluster.speculation.request import Committed, Failed, Refused
from tests.gateway.http.front import CHAT, TEXT, TOOL

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


async def test_a_response_format_must_be_whole(front):
    for format in ({"type": "regex"}, {"type": "json_schema"}, {"type": "json_object", "regex": "a"}):
        answer = await front().post("chat/completions", CHAT | {"response_format": format})
        assert answer.json()["error"]["param"] == "response_format"


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
