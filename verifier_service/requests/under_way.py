"""Decoding on while a block is under way, and what of it is of use when it comes.

Under `coupled` a token follows from the noise of its position and from what is before it, and from nothing
else. So a sequence need not stand still for a block: it decodes without, one token a step, and of the block
it takes in the end what follows these tokens, if the block begins with them. No other law allows that: there,
which drafts are verified must not depend on when they come.
"""

from __future__ import annotations

from dataclasses import dataclass

# Beyond the wait that is usual by so many times, a block is no longer waited for.
_OVERDUE = 3.0


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A block that was asked for and has not come. base: tokens that were committed then; planned: drafts
    asked for one after another; meanwhile: tokens that are decoded before it is waited for; overdue: when the
    wait for it ends all the same, on the monotonic clock; width: as planned."""

    base: int
    planned: int
    meanwhile: int
    overdue: float
    width: int = 1

    def goes_on(self, committed: int, now: float) -> bool:
        """Whether a step that takes place now is to decode a token without it."""
        return committed - self.base < self.meanwhile or now >= self.overdue

    def left(self, committed: int) -> int:
        """Drafts one after another that it may still bring after so many committed tokens."""
        return max(0, self.planned - (committed - self.base))


def overdue(asked: float, usual: float, deadline: float) -> float:
    """When a block that was asked for at `asked` is late; usual: the wait that was measured, 0 for none."""
    return min(deadline, asked + _OVERDUE * usual) if usual else deadline


def worth_waiting(step: float, ready: int, late: int) -> float:
    """Seconds for which sequences that are ready may wait for others, who otherwise miss a step of so many
    seconds: what all lose by the wait is then no more than what these would lose."""
    return step * late / (ready + late)
