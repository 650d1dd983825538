"""Calls read out of an answer while it comes."""

from __future__ import annotations

import json
from enum import Enum, auto

from cluster.gateway.tools.wording import BEGIN, CLOSE, HEAD, TAIL
from truedraft.v1 import inference_pb2 as pb


class _Place(Enum):
    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    CLOSE = auto()
    BETWEEN = auto()


class CallReader:
    """Parts text from calls in an answer that the grammar of calls holds to its form.

    answer_id: what ids of calls begin with; seen: what the answer began with before it was interrupted.
    """

    def __init__(self, answer_id: str, seen: str = "") -> None:
        self._answer_id = answer_id
        self._place = _Place.TEXT
        self._held = ""
        self._arguments = ""
        self._calls = 0
        self.read(seen)

    @property
    def called(self) -> bool:
        """Whether the answer has come to the end of a call, and not begun another."""
        return self._place is _Place.BETWEEN

    def read(self, piece: str) -> tuple[str, list[pb.ToolCall]]:
        """The text and the pieces of calls that are known by now."""
        self._held += piece
        text, calls = "", []
        while True:
            place = self._place
            match place:
                case _Place.TEXT | _Place.BETWEEN:
                    before, found, after = self._held.partition(BEGIN)
                    if found:
                        self._place, self._held = _Place.HEAD, after
                    else:
                        before, self._held = _parted(self._held)
                    # Between calls there are line breaks alone.
                    text += before if place is _Place.TEXT else ""
                case _Place.HEAD:
                    if head := HEAD.match(self._held):
                        self._place, self._held = _Place.ARGUMENTS, self._held[head.end() :]
                        self._arguments = ""
                        identity = f"call_{self._answer_id}_{self._calls}"
                        calls.append(pb.ToolCall(id=identity, name=head[1], index=self._calls))
                case _Place.ARGUMENTS:
                    arguments, ended, after = self._held.partition(TAIL)
                    if ended:
                        self._place, self._held = _Place.CLOSE, after
                    elif self._held.endswith(TAIL[0]):
                        # It may be the call's own, after those of its arguments.
                        arguments, self._held = self._held[:-1], TAIL[0]
                    else:
                        self._held = ""
                    calls += self._piece(arguments)
                    if ended:
                        self._calls += 1
                case _Place.CLOSE:
                    if self._held.startswith(CLOSE):
                        self._place, self._held = _Place.BETWEEN, self._held.removeprefix(CLOSE)
            if self._place is place:
                return text, calls

    def end(self) -> tuple[str, list[pb.ToolCall]]:
        """What was held back, of an answer that is over."""
        held, self._held = self._held, ""
        if self._place is _Place.TEXT:
            return held, []
        if self._place is _Place.ARGUMENTS and not _whole(self._arguments):
            return "", self._piece(held)
        return "", []

    def _piece(self, arguments: str) -> list[pb.ToolCall]:
        self._arguments += arguments
        return [pb.ToolCall(index=self._calls, arguments=arguments)] if arguments else []


def _parted(text: str) -> tuple[str, str]:
    """Text that no call can begin in, and the rest."""
    for length in range(min(len(BEGIN) - 1, len(text)), 0, -1):
        if BEGIN.startswith(text[-length:]):
            return text[:-length], text[-length:]
    return text, ""


def _whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True
