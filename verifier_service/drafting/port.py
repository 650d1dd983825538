"""The engine's side of drafting. Nothing here blocks: a request is answered by a reply later, or never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from cluster.speculation.messages import DraftBlock, DrafterIdentity, SessionSpec


class Fallback(StrEnum):
    """Why a round that asked for a block is decoded without one."""

    NO_DRAFTER = "no-drafter"
    DEADLINE = "deadline"
    STREAM_RESET = "stream-reset"
    STALE_BLOCK = "stale-block"
    INVALID_BLOCK = "invalid-block"
    DRAFTER_FAULT = "drafter-fault"

    @property
    def blind(self) -> bool:
        """Comes about without regard to what was drafted, since nothing was: a drafter may also die, and take
        its stream along, of what it drew."""
        return self is Fallback.NO_DRAFTER


@dataclass(frozen=True, slots=True)
class DraftTicket:
    """A wish for one block.

    plan_id: unique to the engine; committed: tokens since this sequence's last ticket (the first
    ticket's follow the prompt); prefix_hash: over prompt and all committed tokens; base: their count;
    length, stop_below, ahead, width: as planned (`BlockPlan`); a port may leave the grant to draft ahead
    unused. Of length 0 there is the grant alone, while a prompt is computed: no reply comes.
    """

    sequence: int
    plan_id: int
    committed: tuple[int, ...]
    base: int
    prefix_hash: bytes
    length: int
    traceparent: str
    stop_below: float = 0.0
    ahead: int = 0
    width: int = 1


@dataclass(frozen=True, slots=True)
class DraftReply:
    """The answer to a ticket: a block that continues its prefix, or the reason why there is none.

    draft_seconds: the drafter's own time; ahead: the block was drafted before the ticket was issued; asked:
    tokens that the drafter was asked for, None for the ticket's length; certain: the drafter draws nothing,
    so that nothing can depend on what was drawn; arrived: when, on the monotonic clock, 0 for now; trip: of a
    block that nobody waited for, seconds after which it would have been there, 0 where that is not known.
    """

    sequence: int
    plan_id: int
    block: DraftBlock | None
    drafter: DrafterIdentity | None = None
    fallback: Fallback | None = None
    detail: str = ""
    draft_seconds: float = 0.0
    ahead: bool = False
    asked: int | None = None
    certain: bool = False
    arrived: float = 0.0
    trip: float = 0.0

    def depends_on_draws(self, planned: int, ruled: bool) -> bool:
        """Whether a block was lost or cut short in a way that may depend on what was drawn.

        planned: the ticket's length; ruled: the ticket has a rule that may end the block, by what is known
        before a token is drawn. Of a draft that was not drawn the target's law does not care.
        """
        if self.certain and (self.block is None or self.block.proposal is None):
            return False
        if self.block is None:
            return self.fallback is not None and not self.fallback.blind
        return not ruled and len(self.block.tokens) < (planned if self.asked is None else self.asked)


Deliver = Callable[[DraftReply], None]


class DraftingPort(Protocol):
    """Where blocks come from. Called from the engine's thread alone."""

    @property
    def foresees(self) -> bool:
        """Whether a ticket with a grant also brings what follows every outcome of its round."""

    @property
    def apart(self) -> bool:
        """Whether it drafts while the engine goes on, so that asking takes time from steps, and not before
        `request` returns."""

    @property
    def at_once(self) -> bool:
        """Whether it says before `request` returns, and by the committed tokens alone, that it has nothing:
        then another may be asked in the same round."""

    @property
    def reads(self) -> bool:
        """Whether it takes fused features; where not, none are fed."""

    def hold(self) -> None:
        """What is called from now on goes to the drafters with `send`, in one message rather than many."""

    def send(self) -> None:
        """It goes now, and what is called from now on at once."""

    def connect(self, deliver: Deliver) -> None:
        """Tells where replies go; `deliver` may be called from any thread."""

    def open(self, spec: SessionSpec) -> None:
        """Announces a sequence, with its first ticket about to follow."""

    def feed(self, sequence: int, rows: Tensor) -> None:
        """Fused features of an open sequence's next tokens, [n, d], not changed from here on. Those of all
        tokens before a ticket's last come before the ticket."""

    def request(self, ticket: DraftTicket) -> bool:
        """Asks for a block; returns at once, whether a drafter hears of it: none does where it is known that
        there is nothing to draft. A newer ticket of a sequence replaces an older one."""

    def close(self, sequence: int, reason: str) -> None:
        """The sequence is over; no error if it was never opened."""
