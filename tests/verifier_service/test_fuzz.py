"""gRPC messages of every kind: refused in one sentence, or answered by a real engine."""

import os
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.drafting import NgramDrafter
from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.prompting import TokenizerPrompting
from cluster.gateway.validation import Identity, validate
from cluster.speculation.request import Finished, Unfollowable
from tests.gateway.helpers import SPEC
from tests.verifier_service.helpers import accounted
from truedraft.v1 import inference_pb2 as pb
from verifier_service.batch import Answer
from verifier_service.drafting.local import LocalDrafting

SETTINGS = settings(
    # Many more with `make verify`.
    max_examples=int(os.environ.get("TRUEDRAFT_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SERVED = replace(SPEC, laws=("none", "coupled", "rejection", "block", "truncation:min_p"), max_tokens=None)

numbers = st.floats(width=64) | st.sampled_from([0.0, 0.5, 1.0, -1.0, 1e-300, 1e300])
int32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 40)
ids = st.integers(0, 2**32 - 1) | st.integers(0, 520)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["one two one", "é🦜"]
)


samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": numbers,
        "top_k": int32,
        "top_p": numbers,
        "min_p": numbers,
        "typical_p": numbers,
        "eta_cutoff": numbers,
        "repetition_penalty": numbers,
        "frequency_penalty": numbers,
        "presence_penalty": numbers,
        "logit_bias": st.dictionaries(ids, numbers, max_size=3),
    },
).map(lambda fields: pb.Sampling(**fields))
formats = st.one_of(
    st.builds(pb.ResponseFormat, json_object=st.booleans()),
    st.builds(
        pb.ResponseFormat, json_schema=texts | st.sampled_from(['{"type": "boolean"}', "{}", "[" * 9000])
    ),
    st.builds(pb.ResponseFormat, regex=texts | st.sampled_from(["(a|b){2}", "(", "a{99999}", "(a*)*b"])),
)
names = st.sampled_from(["f", "g", "a b", ""])
schemas = st.sampled_from(
    ["", "{}", '{"properties": {"a": {"enum": [1, 2]}}}', '{"type": "string"}', "[", '{"type": "objec"}']
)
choices = st.one_of(
    st.builds(pb.ToolChoice, auto=st.just(True)),
    st.builds(pb.ToolChoice, none=st.just(True)),
    st.builds(pb.ToolChoice, required=st.just(True)),
    st.builds(pb.ToolChoice, function=names),
)
calls = st.builds(
    pb.ToolCall, id=texts, name=names, arguments=texts | st.sampled_from(["{}", '{"a": 1}', "[" * 9000])
)
turns = st.builds(
    pb.ChatMessage,
    role=st.sampled_from(["user", "system", "assistant", "tool", "x"]),
    content=texts,
    tool_calls=st.lists(calls, max_size=1),
    tool_call_id=texts,
) | st.builds(pb.ChatMessage, role=st.just("user"), content=texts)
fields = st.fixed_dictionaries(
    {"prompt": texts},
    optional={
        "model": st.sampled_from(["", "toy", "other"]),
        "prompt_ids": st.lists(ids, max_size=3),
        "messages": st.lists(turns, max_size=3),
        "sampling": samplings,
        "max_tokens": int32,
        "stop": st.lists(texts, max_size=3),
        "seed": st.integers(0, 2**64 - 1),
        "law": st.sampled_from(["", *SERVED.laws, "rumour", "truncation:typical"]),
        "domain": texts,
        "law_params": st.dictionaries(st.sampled_from(["min_p", "x"]), numbers, max_size=2),
        "stop_token_ids": st.lists(ids, max_size=3),
        "ignore_eos": st.booleans(),
        "min_tokens": int32,
        "bad_words": st.lists(texts, max_size=2),
        "top_logprobs": int32,
        "n": int32,
        "resumed_output_ids": st.lists(ids, max_size=3),
        "response_format": formats,
    },
)
offers = st.fixed_dictionaries(
    {
        "tools": st.lists(st.builds(pb.Tool, name=names, description=texts, parameters=schemas), max_size=2),
        "messages": st.lists(turns, min_size=1, max_size=2),
    },
    optional={
        "tool_choice": choices,
        "parallel_tool_calls": st.booleans(),
        "max_tokens": st.integers(1, 40),
        "law": st.sampled_from(["", *SERVED.laws]),
    },
)
messages = (fields | offers).map(lambda given: pb.GenerateRequest(**given))


@pytest.fixture(scope="module")
def prompting(loaded):
    return TokenizerPrompting(loaded.tokenizer, loaded.model.vocab_size, loaded.model.context)


def answered_or_refused(message, prompting, engine):
    refusal, request = "", None
    try:
        request = validate(message, SERVED, prompting, Identity("id"))
    except InvalidRequestError as error:
        refusal = str(error)
    if request is None:
        assert refusal.endswith(".")
        assert len(refusal) < 1000
        return
    least = max(request.controls.min_tokens, len(request.resumed_ids) + 1)
    short = replace(request, max_tokens=min(request.max_tokens, least + 4))
    if short.max_tokens > 40:
        return
    answer, last = Answer(), []

    def sink(event):
        answer.take(event)
        last[:] = [event]

    engine.submit(short, sink)
    while engine.load().active or engine.load().queued:
        engine.step()
    [ending] = last
    if not isinstance(ending, Unfollowable):
        assert isinstance(ending, Finished)
        if len(short.resumed_ids) < short.max_tokens:
            accounted(answer)


@SETTINGS
@given(message=messages)
def test_messages(engine_with, prompting, message):
    answered_or_refused(message, prompting, engine_with(LocalDrafting(NgramDrafter())))


@SETTINGS
@given(message=messages, junk=st.binary(min_size=1, max_size=12), at=st.integers(0, 200))
def test_messages_with_bytes_in_them_that_do_not_belong(engine_with, prompting, message, junk, at):
    wire = message.SerializeToString()
    try:
        changed = pb.GenerateRequest.FromString(
            wire[: at % (len(wire) + 1)] + junk + wire[at % (len(wire) + 1) :]
        )
    except DecodeError:
        return
    answered_or_refused(changed, prompting, engine_with(LocalDrafting(NgramDrafter())))
