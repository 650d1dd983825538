"""Tool calls, schemas and clients that leave, through the HTTP front and the service to a real engine."""

import asyncio
import json
import random

import jsonschema
import pytest

from cluster.drafting import NgramDrafter
from tests.verifier_service.served import served
from truedraft.v1 import inference_pb2 as pb
from verifier_service.drafting.local import LocalDrafting

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "on": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["city", "on"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
WEATHER_CHOICE = {"type": "function", "function": {"name": "weather"}}
# Full of what n-grams take for the beginning of a call.
MARKERS = '<<function= <tool_call>\n{"name": "now", "arguments": {}}\n</tool_call> '
CHAT = {"model": "toy", "messages": [{"role": "user", "content": MARKERS}], "tools": TOOLS}


def ngram():
    return LocalDrafting(NgramDrafter())


async def streamed(client, **fields):
    """The calls of a streamed chat put together, its text, why it ended, and its pieces."""
    calls, text, reason, pieces = {}, "", None, []
    async for chunk in await client.chat.completions.create(stream=True, **CHAT | fields):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for piece in choice.delta.tool_calls or []:
                pieces.append(piece)
                call = calls.setdefault(piece.index, {"id": piece.id, "name": "", "arguments": ""})
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
    return [calls[index] for index in sorted(calls)], text, reason, pieces


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", range(2, 9))
async def test_a_streamed_call_is_the_unspeculated_one(engine_with, loaded, length, temperature):
    asked = {
        "tool_choice": WEATHER_CHOICE,
        "temperature": temperature,
        "seed": 5,
        "max_tokens": 90,
    }
    with served(engine_with(ngram(), block_length=length), loaded) as front:
        calls, text, reason, pieces = await streamed(front.client, **asked)
        plain = await front.client.chat.completions.create(
            **CHAT | asked, extra_body={"truedraft": {"law": "none"}}
        )
    [call], [whole] = calls, plain.choices[0].message.tool_calls
    assert (call["name"], text, reason) == ("weather", "", "tool_calls")
    assert call["arguments"] == whole.function.arguments
    jsonschema.validate(json.loads(call["arguments"]), WEATHER)
    assert plain.choices[0].finish_reason == "tool_calls"
    assert plain.choices[0].message.content is None
    assert whole.id != call["id"]
    assert [bool(piece.id) for piece in pieces] == [True, *[False] * (len(pieces) - 1)]
    assert len(pieces) > 3


async def test_a_required_call_is_one_of_those_offered_and_seeds_choose(engine_with, loaded):
    asked = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 90, "temperature": 10.0}
    names = set()
    with served(engine_with(ngram()), loaded) as front:
        for seed in range(12):
            [call], text, reason, _ = await streamed(front.client, seed=seed, **asked)
            assert (text, reason) == ("", "tool_calls")
            schema = WEATHER if call["name"] == "weather" else {"const": {}}
            jsonschema.validate(json.loads(call["arguments"]), schema)
            names.add(call["name"])
    assert names == {"weather", "now"}


async def test_text_may_come_before_calls_and_an_interrupted_call_goes_on(engine_with, loaded):
    begun = 'Yes.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ri'
    resumed = loaded.tokenizer(begun)["input_ids"]
    asked = {"seed": 3, "temperature": 1.0, "max_tokens": 90, "parallel_tool_calls": False}
    with served(engine_with(ngram()), loaded) as front:
        calls, text, reason, pieces = await streamed(
            front.client, extra_body={"truedraft": {"resumed_output_ids": resumed}}, **asked
        )
        [call] = calls
        assert (text, reason, call["name"]) == ("", "tool_calls", "")
        jsonschema.validate(json.loads('{"city": "Ri' + call["arguments"]), WEATHER)
        # What was received is not told again.
        assert not any(piece.id for piece in pieces)


async def test_an_answer_that_ends_inside_a_call_does_not_say_that_it_called(engine_with, loaded):
    with served(engine_with(ngram()), loaded) as front:
        calls, _, reason, _ = await streamed(front.client, max_tokens=30, seed=1, tool_choice=WEATHER_CHOICE)
        assert reason == "length"
        assert len(calls) == 1
        none, text, reason, _ = await streamed(front.client, tool_choice="none", max_tokens=20, seed=1)
    assert none == []
    assert (bool(text), reason) == (True, "length")


async def test_a_conversation_goes_on_after_its_calls(engine_with, loaded):
    asked = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 90, "seed": 2}
    with served(engine_with(ngram()), loaded) as front:
        first = await front.client.chat.completions.create(**CHAT | asked)
        message = first.choices[0].message
        gave = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "hot"}
        messages = [*CHAT["messages"], message, gave]
        second = await front.client.chat.completions.create(
            **CHAT | {"messages": messages, "max_tokens": 5, "tools": []}
        )
    assert second.choices[0].finish_reason in ("length", "stop")


# What n-grams continue.
SHARED = '{"city":"ab","on":[true,false]} ' * 6


async def test_32_schemas_at_once_are_all_valid(engine_with, loaded):
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    with served(engine_with(ngram(), max_active=16), loaded) as front:
        answers = await asyncio.gather(
            *(
                front.client.chat.completions.create(
                    model="toy",
                    messages=[{"role": "user", "content": f"{SHARED}{seed}"}],
                    response_format=schema,
                    max_tokens=90,
                    seed=seed,
                )
                for seed in range(32)
            )
        )
    for answer in answers:
        jsonschema.validate(json.loads(answer.choices[0].message.content), WEATHER)
        assert answer.choices[0].finish_reason == "stop"
    assert len({answer.choices[0].message.content for answer in answers}) > 16
    assert sum(answer.truedraft["draft_tokens"] for answer in answers) > 0


async def test_a_cache_with_room_for_two_makes_schemas_wait_and_breaks_none(engine_with, loaded):
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    with served(engine_with(ngram(), kv_tokens=512), loaded) as front:
        answers = await asyncio.gather(
            *(
                front.client.completions.create(
                    model="toy",
                    prompt=MARKERS,
                    extra_body={"response_format": schema},
                    max_tokens=90,
                    seed=s,
                )
                for s in range(8)
            )
        )
    for answer in answers:
        jsonschema.validate(json.loads(answer.choices[0].text), WEATHER)


async def test_64_clients_of_whom_every_third_leaves_disturb_nobody(engine_with, loaded):
    rng = random.Random(1)

    async def ask(front, number):
        request = pb.GenerateRequest(prompt=f"one two {number % 5}", max_tokens=24, seed=number)
        answer = front.service.answer(request, [])
        leaves = rng.randrange(0, 5) if number % 3 == 0 else None
        tokens, messages = [], 0
        if leaves == 0:
            # Before the first message.
            waiting = asyncio.create_task(anext(answer))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return None
        async for message in answer:
            messages += 1
            if messages == leaves:
                break
            if isinstance(message, pb.Answer):
                assert message.provenance.seed == number
                return tokens
            tokens.extend(message.token_ids)
        await answer.aclose()
        return None

    with served(engine_with(ngram(), max_active=8), loaded) as front:
        answers = await asyncio.gather(*(ask(front, number) for number in range(64)))
        whole = [number for number, answer in enumerate(answers) if answer is not None]
        assert set(range(64)) - set(whole) <= set(range(0, 64, 3))
        assert len(whole) < 60
        for _ in range(500):
            load = front.engine.load()
            # An audit may still decode one of the answers again.
            if not load.active and not load.queued and not load.kv_tokens:
                break
            await asyncio.sleep(0.01)
        assert (load.active, load.queued, load.kv_tokens, front.service.in_flight) == (0, 0, 0, 0)
        # And what the others got is what each would have got alone.
        for number in whole[:6]:
            request = pb.GenerateRequest(
                prompt=f"one two {number % 5}", max_tokens=24, seed=number, law="none"
            )
            messages = [message async for message in front.service.answer(request, [])]
            alone = [token for message in messages[:-1] for token in message.token_ids]
            assert alone == answers[number]
