"""What a stream's sequences have committed: the truth from which a drafter's own state can be rebuilt."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cluster.drafting.wire import MAX_BLOCK_LENGTH, UnsupportedLawError, session_spec
from cluster.speculation.messages import DraftBlock, PrefixHash, SessionSpec
from truedraft.v1 import drafting_pb2

# Sessions of all streams of a process, so that equal sequence numbers of two verifiers do not collide.
_numbers = itertools.count(1)


class SessionFault(Exception):  # noqa: N818 - named as on the wire
    """A message that a session cannot honour, with the code for its sender."""

    def __init__(self, code: drafting_pb2.FaultCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(slots=True, eq=False)
class Session:
    """number: the sequence's number for the drafter; tokens: prompt and committed, only ever appended to;
    told: blocks of the last forecast, by the prefix that they continue; verified: the block of its round;
    fed: of how many of its tokens there are features."""

    number: int
    epoch: int
    spec: SessionSpec
    tokens: list[int]
    prefix: PrefixHash = field(init=False)
    told: dict[bytes, DraftBlock] = field(default_factory=dict)
    verified: DraftBlock = field(default_factory=DraftBlock)
    fed: int = 0
    _rows: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def __post_init__(self) -> None:
        self.prefix = PrefixHash(self.tokens)

    def feed(self, start: int, rows: Tensor) -> None:
        """Adds features. Raises SessionFault INVALID_MESSAGE for a gap."""
        if start != self.fed:
            raise SessionFault(
                drafting_pb2.FAULT_CODE_INVALID_MESSAGE,
                f"features of {self.fed} tokens are held, got {start}",
            )
        end = start + len(rows)
        if end > len(self._rows):
            # What was handed out before stays as it is.
            room = rows.new_empty(max(2 * end, 64), rows.shape[1])
            if start:
                room[:start] = self._rows[:start]
            self._rows = room
        self._rows[start:end] = rows
        self.fed = end

    def fused(self, count: int) -> Tensor:
        """Features of the first `count` tokens, which must be there: [count, d]."""
        return self._rows[:count]


class StreamSessions:
    """The open sequences of one stream. vocab_size: ids at or above it are refused."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, message: drafting_pb2.Open) -> Session | None:
        """Begins a session; returns the one that it replaces.

        Raises SessionFault INVALID_MESSAGE or UNSUPPORTED_LAW.
        """
        held = self._sessions.get(message.sequence)
        if message.epoch <= (held.epoch if held else 0):
            raise SessionFault(
                drafting_pb2.FAULT_CODE_INVALID_MESSAGE, "an Open must raise its sequence's epoch, from 1"
            )
        if not message.prompt_ids:
            raise SessionFault(drafting_pb2.FAULT_CODE_INVALID_MESSAGE, "an Open needs at least one token")
        self._check_ids(message.prompt_ids)
        try:
            spec = session_spec(message)
        except UnsupportedLawError as error:
            raise SessionFault(drafting_pb2.FAULT_CODE_UNSUPPORTED_LAW, str(error)) from error
        except ValueError as error:
            raise SessionFault(drafting_pb2.FAULT_CODE_INVALID_MESSAGE, str(error)) from error
        self._sessions[message.sequence] = Session(
            next(_numbers), message.epoch, spec, list(message.prompt_ids)
        )
        return held

    def session(self, sequence: int, epoch: int) -> Session | None:
        """The session, if it is open in that epoch."""
        held = self._sessions.get(sequence)
        return held if held is not None and held.epoch == epoch else None

    def commit(self, message: drafting_pb2.Plan) -> Session:
        """Appends a Plan's committed tokens and returns the session, whose prefix is then the Plan's.

        Raises SessionFault: INVALID_MESSAGE and UNKNOWN_SEQUENCE leave the session as it was; after
        PREFIX_MISMATCH it is of no more use and has to be opened again.
        """
        session = self._sessions.get(message.sequence)
        if session is None or session.epoch != message.epoch:
            raise SessionFault(
                drafting_pb2.FAULT_CODE_UNKNOWN_SEQUENCE,
                f"sequence {message.sequence} is not open in epoch {message.epoch}",
            )
        asked = max(message.block_length * max(message.width, 1), message.ahead_length)
        if asked > MAX_BLOCK_LENGTH:
            raise SessionFault(
                drafting_pb2.FAULT_CODE_INVALID_MESSAGE,
                f"a block has at most {MAX_BLOCK_LENGTH} tokens, {asked} were asked for",
            )
        self._check_ids(message.committed_ids)
        if message.base_committed_len != len(session.tokens):
            raise SessionFault(
                drafting_pb2.FAULT_CODE_PREFIX_MISMATCH,
                f"{len(session.tokens)} tokens are held, the plan continues {message.base_committed_len}",
            )
        session.prefix.extend(message.committed_ids)
        session.tokens.extend(message.committed_ids)
        if session.prefix.digest() != message.prefix_hash:
            raise SessionFault(
                drafting_pb2.FAULT_CODE_PREFIX_MISMATCH, f"the first {len(session.tokens)} tokens differ"
            )
        return session

    def close(self, message: drafting_pb2.Close) -> Session | None:
        """Ends a session and returns it; None if it is not open, or in a later epoch."""
        session = self._sessions.get(message.sequence)
        if session is None or session.epoch > message.epoch:
            return None
        return self._sessions.pop(message.sequence)

    def close_all(self) -> list[Session]:
        """Ends and returns every session."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        return sessions

    def _check_ids(self, ids: Collection[int]) -> None:
        largest = max(ids, default=0)
        if largest >= self._vocab_size:
            raise SessionFault(
                drafting_pb2.FAULT_CODE_INVALID_MESSAGE,
                f"token {largest} is outside the vocabulary of {self._vocab_size}",
            )
