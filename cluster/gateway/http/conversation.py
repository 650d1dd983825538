"""The turns of a chat and the functions offered in it, as OpenAI's bodies have them."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cluster.gateway.invalid import InvalidRequestError
from truedraft.v1 import inference_pb2 as pb


class Body(BaseModel):
    """Part of a request's body: names that are not known are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Body):
    type: Literal["text"]
    text: str


class CalledFunction(Body):
    name: str
    arguments: str


class MadeCall(Body):
    id: str
    type: Literal["function"]
    function: CalledFunction

    def to_proto(self) -> pb.ToolCall:
        return pb.ToolCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


class Message(Body):
    """A turn may be an answer of this API, sent back as it came."""

    role: str
    content: str | list[TextPart] | None = None
    refusal: None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None

    def to_proto(self) -> pb.ChatMessage:
        """developer is what OpenAI calls system by now. Raises InvalidRequestError."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequestError("messages", "a message without tool_calls needs content")
        content = self.content or ""
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        role = "system" if self.role == "developer" else self.role
        return pb.ChatMessage(
            role=role,
            content="".join(parts),
            tool_calls=[call.to_proto() for call in self.tool_calls or ()],
            tool_call_id=self.tool_call_id,
        )


class OfferedFunction(Body):
    """strict is how every schema is served."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: OfferedFunction

    def to_proto(self) -> pb.Tool:
        own = self.function
        schema = "" if own.parameters is None else json.dumps(own.parameters)
        return pb.Tool(name=own.name, description=own.description, parameters=schema)


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["auto", "none", "required"] | NamedTool


def to_choice(choice: ToolChoice | None) -> pb.ToolChoice | None:
    """None stays what it is: not asked for."""
    match choice:
        case None:
            return None
        case "auto":
            return pb.ToolChoice(auto=True)
        case "none":
            return pb.ToolChoice(none=True)
        case "required":
            return pb.ToolChoice(required=True)
        case NamedTool():
            return pb.ToolChoice(function=choice.function.name)
