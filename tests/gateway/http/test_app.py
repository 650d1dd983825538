"""Completions and chats over HTTP: bodies, parameters, whole answers and streams."""

import json

import pytest

from cluster.speculation.request import Committed, TokenLogprob
from cluster.speculation.sampling import Sampling
from tests.gateway.helpers import FINISHED
from tests.gateway.http.front import CHAT, TEXT


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


async def test_null_is_the_same_as_absent(front):
    run = front()
    body = TEXT | dict.fromkeys(["temperature", "seed", "stop", "stream", "echo", "n", "truedraft", "model"])
    assert (await run.post("completions", body)).status_code == 200
    assert run.sent[0].sampling == Sampling()
