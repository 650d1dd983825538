"""A conversation with calls in it, as chat templates take it; in plain words for those that know no calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster.gateway.tools.offer import Function
from cluster.gateway.tools.wording import written

_PREAMBLE = "You may call functions, each described by a line:"
_MANNER = "To call one, answer with its name and arguments as JSON, like this:"


@dataclass(frozen=True, slots=True)
class Call:
    """A function that was called, by an id of the answer's."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """calls: of an assistant's; answers: the id of the call that a tool's answers."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    answers: str = ""

    def described(self) -> dict[str, Any]:
        """As chat templates take it."""
        content: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            content["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        if self.answers:
            content["tool_call_id"] = self.answers
        return content


def in_words(turns: Sequence[Turn], functions: Sequence[Function]) -> list[Turn]:
    """The conversation in turns of text alone: functions are described to the system, calls are the
    assistant's text, and what they gave is the user's."""
    plain = [_in_words(turn) for turn in turns]
    if not functions:
        return plain
    lines = [_PREAMBLE, *(json.dumps(each.described()["function"], ensure_ascii=False) for each in functions)]
    told = "\n".join([*lines, _MANNER, written("NAME", {"ARGUMENT": "VALUE"})])
    if plain and plain[0].role == "system":
        return [replace(plain[0], content=f"{plain[0].content}\n\n{told}"), *plain[1:]]
    return [Turn("system", told), *plain]


def _in_words(turn: Turn) -> Turn:
    if turn.role == "tool":
        return Turn("user", f"<tool_response>\n{turn.content}\n</tool_response>")
    calls = [written(call.name, call.arguments) for call in turn.calls]
    return Turn(turn.role, "\n".join([*([turn.content] if turn.content or not calls else []), *calls]))
