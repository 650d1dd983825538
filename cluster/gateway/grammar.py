"""What a request says its answer must look like, as a grammar."""

from __future__ import annotations

import json

from llguidance import LLMatcher

from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.tools.grammar import grammar_of_calls
from cluster.gateway.tools.offer import offer_of
from truedraft.v1 import inference_pb2 as pb

_MAX_CHARACTERS = 65536
# Nothing between the tokens of JSON but what its values hold, so that a schema bounds the answer's length.
_COMPACT = {"whitespace_flexible": False}
_FIELD = "response_format"


def grammar_of(request: pb.GenerateRequest) -> str:
    """As llguidance writes it, empty for free text. Raises InvalidRequestError."""
    format = request.response_format
    kind = format.WhichOneof("kind")
    if (offer := offer_of(request)) is not None:
        _check_alone(request, "tools")
        return _checked(grammar_of_calls(offer), "tools", "these tools")
    if kind is None:
        return ""
    _check_alone(request, _FIELD)
    match kind:
        case "json_object":
            grammar = _json({"type": "object"})
        case "json_schema":
            grammar = _json(_schema(format.json_schema))
        case _:
            _check_size(format.regex)
            grammar = LLMatcher.grammar_from_regex(format.regex)
    return _checked(grammar, _FIELD, f"this {kind}")


def _checked(grammar: str, field: str, what: str) -> str:
    if fault := LLMatcher.validate_grammar(grammar):
        raise InvalidRequestError(field, f"{what} cannot be served: {_one_line(fault)}")
    return grammar


def _check_alone(request: pb.GenerateRequest, field: str) -> None:
    """What could forbid all that the grammar allows, or go on after its end."""
    for name in ("bad_words", "min_tokens", "ignore_eos"):
        if getattr(request, name):
            raise InvalidRequestError(name, f"{name} contradicts {field}: send one of them")


def _check_size(text: str) -> None:
    if len(text) > _MAX_CHARACTERS:
        raise InvalidRequestError(
            _FIELD, f"a grammar may have at most {_MAX_CHARACTERS} characters, this one has {len(text)}"
        )


def _schema(text: str) -> object:
    _check_size(text)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequestError(_FIELD, "json_schema is not JSON") from None
    if not isinstance(schema, dict):
        raise InvalidRequestError(_FIELD, "json_schema must be an object")
    return schema


def _json(schema: object) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            _FIELD, f"this json_schema cannot be served: {_one_line(str(error))}"
        ) from None


def _one_line(fault: str) -> str:
    first = fault.strip().splitlines()[0] if fault.strip() else "no reason was given"
    return first[:200].rstrip(".: ")
