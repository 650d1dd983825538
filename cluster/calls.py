"""Calls of functions, put together from the pieces that a stream brings."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence

from truedraft.v1 import inference_pb2 as pb


def add_pieces(calls: MutableSequence[pb.ToolCall], pieces: Iterable[pb.ToolCall]) -> None:
    """Adds pieces to the calls of one answer. A resumed answer may begin in the middle of a call."""
    for piece in pieces:
        while len(calls) <= piece.index:
            calls.append(pb.ToolCall(index=len(calls)))
        call = calls[piece.index]
        call.id, call.name = piece.id or call.id, piece.name or call.name
        call.arguments += piece.arguments
