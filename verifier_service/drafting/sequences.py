"""What the verifier holds of a sequence for its drafter, and whether a block answers what was asked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from cluster.drafting.wire import MAX_FEATURES_BYTES, feature_rows, open_message, take_parents, take_proposal
from cluster.speculation.messages import DraftBlock, SessionSpec
from truedraft.v1 import drafting_pb2
from verifier_service.drafting.checking import fault_of
from verifier_service.drafting.connection import Connection
from verifier_service.drafting.forecasts import Answered, Told
from verifier_service.drafting.link import Link
from verifier_service.drafting.port import DraftTicket


class OutOfOrderError(ValueError):
    """A ticket that does not continue what is held."""


# A block that is drafted ahead may come when the next plan has been sent already.
_GRANTS = 2


@dataclass(frozen=True, slots=True)
class Grant:
    """length: tokens that may be drafted ahead of a plan's block; sent: when, on the monotonic clock."""

    plan_id: int
    length: int
    sent: float


@dataclass(slots=True, eq=False)
class Sequence:
    """tokens: prompt and committed; epoch: of the last Open; sent: tokens the drafter has in that epoch.

    link: to the replica that drafts for it, None without one; moves: it is to draft elsewhere from its
    next plan on; stream: number of the stream that `epoch` was opened on, 0 for none; ticket: to be
    answered; asked: tokens that the drafter was asked for, one after another; last: the latest ticket
    that a block answered; foretold: its plan, if a forecast had told that block; grants: the latest to
    draft ahead; reopened: the plan that the sequence was opened again for; refused: why this stream's
    drafter will not take it; fused: features of its first tokens, in pieces, and fed, how many of the
    pieces, and of how many tokens, the drafter has in this epoch.
    """

    spec: SessionSpec
    tokens: list[int] = field(init=False)
    epoch: int = 0
    sent: int = 0
    link: Link | None = None
    moves: bool = False
    stream: int = 0
    ticket: DraftTicket | None = None
    asked: int = 0
    last: Answered = field(default_factory=Answered)
    foretold: int = 0
    grants: deque[Grant] = field(default_factory=lambda: deque(maxlen=_GRANTS))
    reopened: int | None = None
    refused: str = ""
    fused: list[Tensor] = field(default_factory=list)
    fed: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.tokens = list(self.spec.prompt_ids)

    def commit(self, ticket: DraftTicket, before: tuple[int, ...] = ()) -> None:
        """before: tokens of tickets that did not come here. Raises OutOfOrderError, and then holds what it
        held."""
        committed = (*before, *ticket.committed)
        if len(self.tokens) + len(committed) != ticket.base:
            raise OutOfOrderError(
                f"{len(self.tokens)} tokens and {len(committed)} more are not {ticket.base}"
            )
        self.tokens.extend(committed)

    @property
    def connection(self) -> Connection | None:
        """To the replica that drafts for it, whether the sequence is open there or not."""
        return self.link.connection if self.link is not None else None

    def send_open(self, connection: Connection) -> None:
        """Begins a new epoch on a stream."""
        self.epoch += 1
        self.grants.clear()
        self.sent, self.refused, self.fed = len(self.tokens), "", (0, 0)
        self.stream = connection.number
        message = open_message(self.spec, self.epoch, self.tokens)
        connection.send(drafting_pb2.VerifierMessage(open=message))
        self.send_features(connection)

    def send_features(self, connection: Connection) -> None:
        """Where the drafter reads some, and the sequence is open on this stream."""
        if connection.fed and self.stream == connection.number:
            for start, rows in self._unfed():
                connection.send_features(self.spec.sequence, self.epoch, start, rows)

    def send_close(self, reason: str) -> None:
        """If it is open on its replica's stream."""
        connection = self.connection
        if connection is not None and self.stream == connection.number:
            message = drafting_pb2.Close(sequence=self.spec.sequence, epoch=self.epoch, reason=reason)
            connection.send(drafting_pb2.VerifierMessage(close=message))

    def _unfed(self) -> Iterator[tuple[int, bytes]]:
        """What of the features the drafter lacks, in pieces that fit a message, and where each begins."""
        pieces, at = self.fed
        for rows in self.fused[pieces:]:
            most = MAX_FEATURES_BYTES // (rows.shape[1] * rows.element_size())
            for piece in rows.split(most):
                yield at, feature_rows(piece)
                at += len(piece)
        self.fed = len(self.fused), at

    def plan(self, ticket: DraftTicket, asked: int, held: bool) -> drafting_pb2.Plan:
        """What is new to the drafter, and the block that is wanted, of so many drafts, or held already."""
        self.asked = asked
        base, self.sent = self.sent, len(self.tokens)
        if ticket.ahead:
            self.grants.append(Grant(ticket.plan_id, ticket.ahead, time.monotonic()))
        return drafting_pb2.Plan(
            sequence=self.spec.sequence,
            epoch=self.epoch,
            plan_id=ticket.plan_id,
            base_committed_len=base,
            committed_ids=self.tokens[base:],
            prefix_hash=ticket.prefix_hash,
            block_length=self.asked,
            traceparent=ticket.traceparent,
            stop_below=ticket.stop_below,
            ahead_length=ticket.ahead,
            held=held,
            width=ticket.width,
        )

    def granted(self, plan_id: int) -> Grant | None:
        """To draft ahead of a plan's block; None if nothing was, or it is long ago."""
        return next((grant for grant in self.grants if grant.plan_id == plan_id), None)


def mismatch(block: drafting_pb2.Block, sequence: Sequence, incarnation: int) -> str:
    """In what a block differs from what it should answer: a single word, empty if in nothing."""
    ticket = sequence.ticket
    if block.epoch != sequence.epoch:
        return "epoch"
    if ticket is None or block.plan_id != ticket.plan_id:
        return "plan"
    if block.incarnation != incarnation:
        return "incarnation"
    if block.prefix_hash != ticket.prefix_hash:
        return "prefix"
    return ""


def forecast_of(
    sequence: Sequence,
    forecast: drafting_pb2.Forecast,
    grant: Grant,
    vocab_size: int,
    connection: Connection,
) -> Told:
    """The forecast's content, as it has just come. Raises ValueError saying what is wrong with it."""
    trip = time.monotonic() - grant.sent
    blocks = {each.prefix_hash: checked(each, grant.length, vocab_size) for each in forecast.outcomes}
    # Of a round whose block was lost it is not known what its outcomes are.
    known = sequence.last.plan_id == forecast.plan_id
    of, exhaustive = (sequence.last, forecast.exhaustive) if known else (Answered(), False)
    seconds = forecast.draft_time_ns * 1e-9
    return Told(of, blocks, exhaustive, grant.length, seconds, trip, connection)


def checked(
    block: drafting_pb2.Block | drafting_pb2.Outcome, length: int, vocab_size: int, width: int = 1
) -> DraftBlock:
    """The block's content; length, width: as asked for. Raises ValueError saying what is wrong with it."""
    # Sums in single precision may end a little above 1.
    if not all(0.0 <= q <= 1.001 for q in block.max_q):
        raise ValueError("a statistic is no probability")
    content = DraftBlock(
        tokens=tuple(block.ids),
        max_q=tuple(min(q, 1.0) for q in block.max_q),
        parents=take_parents(block) if isinstance(block, drafting_pb2.Block) else None,
        proposal=take_proposal(block) if isinstance(block, drafting_pb2.Block) else None,
    )
    if fault := fault_of(content, length, vocab_size, width):
        raise ValueError(fault)
    return content
