"""Answers in a grammar: valid whoever drafts, the tokens of plain decoding, masks that are rolled back."""

import json
import re
from dataclasses import replace

import pytest
import torch
from llguidance import LLMatcher

from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import CONTEXT_LENGTH
from cluster.drafting import NgramDrafter
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.request import Finished, FinishReason, Unfollowable
from drafter_service.drafters.causal_lm import CausalLmDrafter
from tests.verifier_service.helpers import Scripted, accounted, alone, oracle
from verifier_service.batch import Answer, answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.requests.grammar import GrammarError, Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["river", "hill"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
REGEX = LLMatcher.grammar_from_regex("(one|two|three)( (one|two|three)){2,5}")


@pytest.fixture(scope="module")
def drafters(tiny_path):
    model = load_model(resolve(str(tiny_path)), "float32", "cpu")
    return {
        "ngram": NgramDrafter,
        "self": lambda: CausalLmDrafter(model, "tiny", "", CONTEXT_LENGTH, model.config.vocab_size),
        "wrong": lambda: Scripted(lambda text, length: [(text[-1] + 1 + k) % 500 for k in range(length)]),
    }


def valid(text):
    answer = json.loads(text)
    assert list(answer) == ["name", "kind", "tags"]
    assert answer["kind"] in ("river", "hill")
    assert len(answer["name"]) <= 8
    assert len(answer["tags"]) <= 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ngram", "self", "wrong"])
@pytest.mark.parametrize("length", [2, 5, 8])
def test_speculation_changes_no_token(engine_with, request_for, drafters, name, temperature, length):
    request = request_for(temperature=temperature, grammar=JSON, max_tokens=150)
    plain = alone(engine_with(), replace(request, law=NONE))
    valid(plain.text)
    assert plain.finished.reason is FinishReason.STOP
    answer = alone(engine_with(LocalDrafting(drafters[name]()), block_length=length), request)
    assert answer.token_ids == plain.token_ids
    accounted(answer)


def test_drafts_in_the_grammar_are_accepted(engine_with, request_for):
    request = request_for(temperature=1.0, grammar=JSON, max_tokens=150)
    plain = alone(engine_with(), replace(request, law=NONE))
    port = LocalDrafting(oracle([*request.prompt_ids, *plain.token_ids]))
    provenance = accounted(alone(engine_with(port), request))
    assert provenance.accepted_tokens == provenance.draft_tokens > 0


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
def test_many_answers_at_once_are_all_valid(engine_with, request_for, drafters, law):
    requests = [
        request_for(temperature=1.5, law=law, grammar=JSON, max_tokens=150, seed=seed, request_id=str(seed))
        for seed in range(32)
    ]
    answers = answer_all(engine_with(LocalDrafting(drafters["ngram"]()), max_active=32), requests)
    for answer in answers:
        valid(answer.text)
    assert len({answer.text for answer in answers}) > 16


def test_a_regular_expression(engine_with, request_for, drafters):
    for seed in range(8):
        request = request_for(temperature=1.0, grammar=REGEX, max_tokens=80, seed=seed)
        answer = alone(engine_with(LocalDrafting(drafters["ngram"]())), request)
        assert re.fullmatch("(one|two|three)( (one|two|three)){2,5}", answer.text)


def test_an_interrupted_answer_stays_in_its_grammar(engine_with, request_for):
    request = request_for(temperature=1.0, grammar=JSON, max_tokens=150)
    whole = alone(engine_with(), request)
    rest = alone(engine_with(), replace(request, resumed_ids=tuple(whole.token_ids[:9])))
    assert rest.token_ids == whole.token_ids[9:]


def test_an_answer_that_gave_its_place_away_stays_in_its_grammar(engine_with, request_for, drafters):
    """vllm PR#30916."""
    requests = [
        request_for(temperature=1.0, grammar=JSON, max_tokens=150, seed=seed, request_id=str(seed))
        for seed in range(6)
    ]
    engine = engine_with(LocalDrafting(drafters["ngram"]()), kv_tokens=192)
    answers, gave_way = [Answer() for _ in requests], 0
    for request, answer in zip(requests, answers, strict=True):
        engine.submit(request, answer.take)
    while not all(answer.finished for answer in answers):
        engine.step()
        gave_way = max(gave_way, engine._admission.returning)
    assert gave_way
    for request, answer in zip(requests, answers, strict=True):
        valid(answer.text)
        assert answer.token_ids == alone(engine_with(), replace(request, law=NONE)).token_ids


def test_resumed_tokens_outside_the_grammar_fail_their_request_alone(engine_with, request_for):
    engine, events = engine_with(), []
    engine.submit(request_for(grammar=JSON, resumed_ids=(5,)), events.append)
    [event] = events
    assert isinstance(event, Unfollowable)
    assert (event.field, "grammar" in event.detail) == ("resumed_output_ids", True)
    assert alone(engine, request_for(max_tokens=3)).finished is not None


# Within what a grammar may be, and beyond what can be followed: its mask, or the token after it, is too much.
HUGE = {
    "a regular expression": LLMatcher.grammar_from_regex("(a{1000}){1000}"),
    "nothing at all": LLMatcher.grammar_from_json_schema('{"$ref": "#"}'),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_grammar_that_cannot_be_followed_fails_its_request_alone(engine_with, request_for, drafters, name):
    engine, events, other = engine_with(LocalDrafting(drafters["ngram"]())), [], []
    engine.submit(request_for(request_id="other", max_tokens=20), other.append)
    engine.submit(request_for(grammar=HUGE[name]), events.append)
    while engine.load().active or engine.load().queued:
        engine.step()
    assert isinstance(events[-1], Unfollowable)
    assert "the grammar cannot be followed" in events[-1].detail
    assert not any(mark in events[-1].detail for mark in ("<", "⟦", "\n"))
    assert isinstance(other[-1], Finished)
    assert engine.load().kv_tokens == 0


def test_a_schema_of_many_properties_is_followed(engine_with, request_for):
    properties = {f"p{index}": {"type": "boolean"} for index in range(1500)}
    schema = json.dumps({"type": "object", "properties": properties, "additionalProperties": False})
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    answer = alone(engine_with(), request_for(temperature=1.0, grammar=grammar, max_tokens=20))
    assert answer.text.startswith("{")


def test_masks_are_rolled_back(loaded):
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size, loaded.stop_ids)
    [end] = loaded.stop_ids
    one, two = (loaded.tokenizer(text)["input_ids"] for text in ("one", " two"))
    constraint = grammars.constraint(LLMatcher.grammar_from_regex("one( two)?"))
    before = constraint.allowed([])
    assert before[one[0]]
    assert not before[end]
    assert constraint.allowed(one)[end]
    assert constraint.allowed([*one, *two]).nonzero().flatten().tolist() == [end]
    assert constraint.allowed([*one, end]) is None
    assert constraint.allowed([two[0], 5]) is None
    assert torch.equal(constraint.allowed([]), before)
    for token in one:
        constraint.emit(token)
    assert constraint.allowed([])[end]
    with pytest.raises(GrammarError):
        constraint.emit(one[0])
    with pytest.raises(GrammarError):
        grammars.constraint(LLMatcher.grammar_from_regex("["))
