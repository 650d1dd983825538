"""What may be offered, and the language of the answers to it."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from cluster.gateway.grammar import grammar_of
from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.tools.offer import offer_of
from cluster.gateway.tools.wording import written
from truedraft.v1 import inference_pb2 as pb

WEATHER = {
    "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [pb.Tool(name="weather", parameters=json.dumps(WEATHER)), pb.Tool(name="now")]
USER = [pb.ChatMessage(role="user", content="hi")]


def asked(**fields):
    return pb.GenerateRequest(**{"messages": USER, "tools": TOOLS} | fields)


def chosen(**kind):
    return pb.ToolChoice(**kind)


BYTES = LLTokenizer("byte")


def allowed(grammar, text):
    """Whether the text is an answer, and whether it begins one."""
    matcher = LLMatcher(BYTES, grammar)
    tokens = BYTES.tokenize_str(text)
    begins = matcher.try_consume_tokens(tokens) == len(tokens)
    return begins and matcher.is_accepting(), begins


PARIS = written("weather", {"city": "Paris"})
NOW = written("now", {})
YES, NO, BEGINNING = (True, True), (False, False), (False, True)
ANSWERS = {
    "auto": {
        "": YES,
        "It is <b>hot</b>, é\n": YES,
        PARIS: YES,
        f"Let me see.\n{PARIS}": YES,
        f"{PARIS}\n{NOW}": YES,
        f"{PARIS} and more": NO,
        PARIS[:-3]: BEGINNING,
        "a <tool_call>b": NO,
        "a <tool_call": YES,
        written("weather", {"city": "x" * 11}): NO,
        written("weather", {}): NO,
        written("weather", {"city": "x", "z": 1}): NO,
        written("other", {}): NO,
        PARIS.replace(": ", ":"): NO,
    },
    "required": {"": BEGINNING, "It": NO, PARIS: YES, f"{NOW}\n{PARIS}": YES, f"a{NOW}": NO},
    "now": {"": BEGINNING, PARIS: NO, NOW: YES, f"{NOW}\n{NOW}": NO, written("now", {"a": 1}): NO},
}
CHOICES = {
    "auto": chosen(auto=True),
    "required": chosen(required=True),
    "now": chosen(function="now"),
}


@pytest.mark.parametrize(
    ("choice", "text", "expected"),
    [(choice, text, expected) for choice, texts in ANSWERS.items() for text, expected in texts.items()],
)
def test_the_language_of_answers(choice, text, expected):
    grammar = grammar_of(asked(tool_choice=CHOICES[choice]))
    assert allowed(grammar, text) == expected


def test_auto_is_what_is_not_said():
    assert grammar_of(asked()) == grammar_of(asked(tool_choice=CHOICES["auto"]))


@pytest.mark.parametrize("choice", [None, chosen(required=True)])
def test_calls_that_are_not_parallel_are_one(choice):
    grammar = grammar_of(asked(tool_choice=choice, parallel_tool_calls=False))
    assert allowed(grammar, PARIS) == YES
    assert allowed(grammar, f"{PARIS}\n{NOW}") == NO


def test_none_offers_nothing():
    request = asked(tool_choice=chosen(none=True), min_tokens=3)
    assert offer_of(request) is None
    assert grammar_of(request) == ""
    assert offer_of(pb.GenerateRequest(prompt="x", tool_choice=chosen(none=True))) is None


def test_all_functions_are_told_where_one_is_named():
    offer = offer_of(asked(tool_choice=chosen(function="now")))
    assert [function.name for function in offer.told] == ["weather", "now"]
    assert [function.name for function in offer.callable] == ["now"]
    assert (offer.required, offer.parallel) == (True, False)


REFUSED = {
    "choice without tools": ({"tools": [], "tool_choice": chosen(auto=True)}, "tool_choice"),
    "parallel without tools": ({"tools": [], "parallel_tool_calls": True}, "parallel_tool_calls"),
    "no conversation": ({"messages": [], "prompt": "x"}, "tools"),
    "unknown function": ({"tool_choice": chosen(function="other")}, "tool_choice"),
    "bad name": ({"tools": [pb.Tool(name="a b")]}, "tools"),
    "no name": ({"tools": [pb.Tool()]}, "tools"),
    "twice": ({"tools": [pb.Tool(name="a"), pb.Tool(name="a")]}, "tools"),
    "too many": ({"tools": [pb.Tool(name=f"f{index}") for index in range(129)]}, "tools"),
    "too long": ({"tools": [pb.Tool(name="f", description="x" * 70_000)]}, "tools"),
    "no JSON": ({"tools": [pb.Tool(name="f", parameters="{")]}, "tools"),
    "deep": ({"tools": [pb.Tool(name="f", parameters="[" * 60_000)]}, "tools"),
    "no object": ({"tools": [pb.Tool(name="f", parameters='{"type": "string"}')]}, "tools"),
    "no schema": ({"tools": [pb.Tool(name="f", parameters='{"properties": {"a": {"type": "b"}}}')]}, "tools"),
    "a format": ({"response_format": pb.ResponseFormat(json_object=True)}, "response_format"),
    "bad words": ({"bad_words": ["x"]}, "bad_words"),
    "min_tokens": ({"min_tokens": 2}, "min_tokens"),
    "ignore_eos": ({"ignore_eos": True}, "ignore_eos"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence_that_names_the_field(name):
    fields, field = REFUSED[name]
    with pytest.raises(InvalidRequestError) as caught:
        grammar_of(asked(**fields))
    assert caught.value.field == field
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 400
