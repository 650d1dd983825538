"""What drafters told of rounds that are not over: blocks by the outcomes that these may have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from cluster.speculation.messages import DraftBlock
from verifier_service.drafting.connection import Connection
from verifier_service.drafting.port import DraftTicket


@dataclass(frozen=True, slots=True)
class Answered:
    """A ticket that was answered by a block. base: tokens that were committed then."""

    plan_id: int = 0
    base: int = 0
    block: DraftBlock = field(default_factory=DraftBlock)


@dataclass(frozen=True, slots=True)
class Told:
    """A forecast of a round. of: the round's ticket and block, empty where it had another; blocks: by the
    prefix that they continue; exhaustive: nothing is drafted after other outcomes; length: of blocks, as
    granted; seconds: the drafter's own time; trip: from the plan's sending to the forecast's arrival, 0 if
    that was said before; connection: its own."""

    of: Answered
    blocks: dict[bytes, DraftBlock]
    exhaustive: bool
    length: int
    seconds: float
    trip: float
    connection: Connection

    @property
    def count(self) -> int:
        """Tokens of all blocks."""
        return sum(len(block.tokens) for block in self.blocks.values())

    def asked(self, ticket: DraftTicket) -> int:
        """Drafts of a ticket that it can have told."""
        return min(self.length, self.connection.asked(ticket))

    def block(self, ticket: DraftTicket) -> DraftBlock | None:
        """What is drafted for the next ticket, perhaps nothing; None if this does not tell, as it does
        of no tree. A block of which only a beginning was verified goes on with its rest."""
        block = self.blocks.get(ticket.prefix_hash)
        if block is None and self.of.plan_id and self.of.base == ticket.base - len(ticket.committed):
            drafts, since = self.of.block.tokens, ticket.committed
            kept = len(since) - 1
            if since[:-1] == drafts[:kept] and since[kept:] != drafts[kept : kept + 1]:
                return DraftBlock() if self.exhaustive else None
            block = self.of.block.after(since)
        if block is None or (block.tokens and ticket.width > 1):
            return None
        return block.first(self.asked(ticket))


class Forecasts:
    """The latest forecast of each sequence: put in on the event loop, taken out from any thread, and put back
    there while nothing newer is asked for. counts: tokens of blocks that were "used", or "wasted"."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}
        self.counts: Counter[str] = Counter()

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._told

    def put(self, sequence: int, told: Told) -> None:
        """Replaces the one before."""
        self.drop(sequence)
        self._told[sequence] = told

    def keep(self, sequence: int, told: Told) -> None:
        """Puts back what was taken out and has not to be counted yet. Any thread."""
        self._told[sequence] = replace(told, trip=0.0)

    def take(self, ticket: DraftTicket) -> tuple[Told, DraftBlock | None] | None:
        """The sequence's forecast, and what it tells of the ticket. It has to be counted."""
        told = self._told.pop(ticket.sequence, None)
        return (told, told.block(ticket)) if told is not None else None

    def drop(self, sequence: int) -> None:
        """The round did not come to its end, or another drafter goes on."""
        told = self._told.pop(sequence, None)
        if told is not None:
            self.count(told, None)

    def count(self, told: Told, used: DraftBlock | None) -> None:
        """A forecast is of no more use. On the event loop."""
        count = len(used.tokens) if used is not None else 0
        self.counts["used"] += count
        self.counts["wasted"] += told.count - count
