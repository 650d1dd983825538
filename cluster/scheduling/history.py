"""What a planner may know before a round: the filtration.

Every field is a count, a time, a label, or a statistic of a round that is over. None can hold a drafted
token, so that no plan can depend on one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.scheduling.cost import DraftCost, VerifyCost


@dataclass(frozen=True, slots=True)
class Round:
    """A round that is over. planned: drafts that were asked for, 0 for a plain round; drafted: those that
    were verified; accepted: of these; whole: whether nothing but the drafter limited `drafted`,
    which is 0 for a block that was lost; max_q: of
    the verified positions, each known before its token was drawn."""

    planned: int
    drafted: int = 0
    accepted: int = 0
    whole: bool = True
    max_q: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Experience:
    """What drafts came to in other requests of the same domain with the same drafter.

    tried, accepted: drafted positions whose predecessors were accepted, and those accepted themselves.
    """

    tried: float = 0.0
    accepted: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """A sequence's past at a round's start.

    committed: tokens so far, the prompt included; remaining: tokens that the request may still emit;
    rounds: the last of them, oldest first; idle: plain rounds since a block was last asked for;
    domain, drafter: labels; experience: of others; others: sequences that share the steps; other_rows:
    rows that these put into a step; other_tokens: tokens that a step gives these; verify, draft: measured
    costs, None before anything was measured; waits: the request's law waits for every block and takes none
    that was drafted before its round, so that nothing hides the wait; foresees: the drafter says during a
    round what it drafts after every outcome of it.
    """

    committed: int
    remaining: int
    rounds: tuple[Round, ...] = ()
    idle: int = 0
    domain: str = ""
    drafter: str = ""
    experience: Experience = field(default_factory=Experience)
    others: int = 0
    other_rows: float = 0.0
    other_tokens: float = 0.0
    verify: VerifyCost | None = None
    draft: DraftCost = field(default_factory=DraftCost)
    waits: bool = False
    foresees: bool = False
