"""What a request offers the model to call, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.gateway.invalid import InvalidRequestError, short
from cluster.gateway.tools.wording import NAME
from truedraft.v1 import inference_pb2 as pb

_MAX_TOOLS = 128
_MAX_CHARACTERS = 65536
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Function:
    """parameters: the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def described(self) -> dict[str, Any]:
        """As chat templates take it."""
        own: dict[str, Any] = {"name": self.name}
        if self.description:
            own["description"] = self.description
        return {"type": "function", "function": own | {"parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class Offer:
    """told: the functions that the model is told of; callable: those that it may call; required: it must
    call, and say nothing else; parallel: more than once."""

    told: tuple[Function, ...]
    callable: tuple[Function, ...]
    required: bool
    parallel: bool


def offer_of(request: pb.GenerateRequest) -> Offer | None:
    """None where nothing may be called. Raises InvalidRequestError."""
    kind = request.tool_choice.WhichOneof("kind")
    if not request.tools:
        for name, given in (
            ("tool_choice", kind not in (None, "none")),
            ("parallel_tool_calls", request.HasField("parallel_tool_calls")),
        ):
            if given:
                raise InvalidRequestError(name, f"{name} is for requests with tools")
        return None
    functions = _functions(request)
    if not request.messages:
        raise InvalidRequestError("tools", "tools are for conversations: send messages")
    if kind == "none":
        return None
    _check_alone(request)
    parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True
    if kind != "function":
        return Offer(functions, functions, kind == "required", parallel)
    name = request.tool_choice.function
    named = tuple(function for function in functions if function.name == name)
    if not named:
        raise InvalidRequestError("tool_choice", f"tool_choice names {short(name)}, which is not in tools")
    return Offer(functions, named, required=True, parallel=False)


def _check_alone(request: pb.GenerateRequest) -> None:
    if request.response_format.WhichOneof("kind") is not None:
        raise InvalidRequestError(
            "response_format", "response_format contradicts tools: send one of them, or tool_choice none"
        )


def _functions(request: pb.GenerateRequest) -> tuple[Function, ...]:
    tools = request.tools
    if len(tools) > _MAX_TOOLS:
        raise InvalidRequestError("tools", f"at most {_MAX_TOOLS} tools are taken, got {len(tools)}")
    size = sum(len(tool.parameters) + len(tool.description) for tool in tools)
    if size > _MAX_CHARACTERS:
        raise InvalidRequestError(
            "tools", f"tools may have at most {_MAX_CHARACTERS} characters, these have {size}"
        )
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if not NAME.fullmatch(name):
            sentence = f"tools[{index}] has the name {short(name)}; names are 1 to 64 of a-z, A-Z, 0-9, _, -"
            raise InvalidRequestError("tools", sentence)
        if name in names[:index]:
            raise InvalidRequestError("tools", f"tools has {short(name)} twice")
    return tuple(
        Function(tool.name, tool.description, _parameters(index, tool)) for index, tool in enumerate(tools)
    )


def _parameters(index: int, tool: pb.Tool) -> Mapping[str, Any]:
    if not tool.parameters:
        return _NO_ARGUMENTS
    try:
        schema = json.loads(tool.parameters)
    except (ValueError, RecursionError):
        raise InvalidRequestError("tools", f"tools[{index}] has parameters that are not JSON") from None
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequestError("tools", f"tools[{index}] must have parameters of type object")
    return {"type": "object"} | schema
