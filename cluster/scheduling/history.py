"""What a planner may know before a round: the filtration.

Every field is a count, a time, a label, or a statistic of a round that is over. None can hold a drafted
token, so that no plan can depend on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cluster.scheduling.cost import DraftCost, VerifyCost


@dataclass(frozen=True, slots=True)
class Round:
    """A round that is over. planned: drafts that were asked for, one after another, 0 for a plain round;
    drafted: those that were verified; accepted: of these; whole: whether nothing but the drafter limited
    `drafted`, which is 0 for a block that was lost; max_q: of the verified positions, each known before its
    token was drawn.

    width: drafts that were asked for at each position; of a tree `drafted` counts along the accepted path,
    and ranks says which of its siblings each accepted draft was, from 0, and children, how many were drafted
    where the path ended; spread: its drafts over its depth.
    """

    planned: int
    drafted: int = 0
    accepted: int = 0
    whole: bool = True
    max_q: tuple[float, ...] = ()
    width: int = 1
    ranks: tuple[int, ...] = ()
    children: int = 0
    spread: float = 1.0

    @property
    def tried(self) -> int:
        """Positions whose predecessors were accepted."""
        return min(self.accepted + 1, self.drafted)

    def first_kept(self, k: int) -> bool:
        """Whether the first draft at a position was accepted."""
        return k < self.accepted and (not self.ranks or self.ranks[k] == 0)

    def later(self) -> Iterator[tuple[int, bool]]:
        """Of siblings behind the first: which one, from 1, and whether it was right, where those before it
        were not."""
        for rank in self.ranks:
            yield from ((each, each == rank) for each in range(1, rank + 1))
        yield from ((each, False) for each in range(1, self.children))


@dataclass(frozen=True, slots=True)
class Experience:
    """What drafts came to in other requests of the same domain with the same drafter.

    tried, accepted: drafted positions whose predecessors were accepted, and those where the first draft was
    accepted itself; later_tried, later_right: the same of siblings where those before them were wrong; asked,
    given: blocks that were asked for, and those that had a draft.
    """

    tried: float = 0.0
    accepted: float = 0.0
    later_tried: float = 0.0
    later_right: float = 0.0
    asked: float = 0.0
    given: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """A sequence's past at a round's start.

    committed: tokens so far, the prompt included; remaining: tokens that the request may still emit;
    rounds: the last of them, oldest first; idle: plain rounds since a block was last asked for; unbroken:
    rounds since the last one for which none was;
    domain, drafter: labels; experience: of others; others: sequences that share the steps; other_rows:
    rows that these put into a step; other_tokens: tokens that a step gives these; other_seconds: what a step
    takes longer for the blocks that these ask for; verify, draft: measured costs, None before anything was
    measured; waits: the request's law waits for every block and takes none
    that was drafted before its round, so that nothing hides the wait; foresees: the drafter says during a
    round what it drafts after every outcome of it; apart: it drafts while others compute; at_once: where it
    has nothing it says so before anybody waits, and the round is planned anew without it; granted: while the
    prompt was computed, it could foresee what follows.
    """

    committed: int
    remaining: int
    rounds: tuple[Round, ...] = ()
    idle: int = 0
    unbroken: int = 0
    domain: str = ""
    drafter: str = ""
    experience: Experience = field(default_factory=Experience)
    others: int = 0
    other_rows: float = 0.0
    other_tokens: float = 0.0
    other_seconds: float = 0.0
    verify: VerifyCost | None = None
    draft: DraftCost = field(default_factory=DraftCost)
    waits: bool = False
    foresees: bool = False
    apart: bool = True
    at_once: bool = False
    granted: bool = False

    @property
    def begins(self) -> bool:
        """Whether a block asked for now is the first of this drafter, or the first after plain rounds."""
        return self.idle > 0 or not (self.rounds or self.granted)

    @property
    def foreseen(self) -> bool:
        """Whether the round before had a block of this drafter, so that it can have foreseen this one's."""
        return not self.begins and (self.unbroken > 0 or not self.rounds)
