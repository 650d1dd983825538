"""What a planner decides, and of what.

A plan is made before drafting from `History`; how many drafted rows enter a batch is decided from
`Frontier`s once the blocks are in. Neither type can hold a drafted token: a decision that depended on
one would change the law of the answer under every law but `coupled` (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.scheduling.calibration import Calibration
from cluster.scheduling.cost import VerifyCost
from cluster.scheduling.history import History
from cluster.speculation.messages import BlockPlan


class Frontier(Protocol):
    """One sequence's block as admission may see it: only the next undecided position, never ids. Drafts are
    decided in the order in which they were drafted, in which each comes after the one that it follows."""

    @property
    def next_max_q(self) -> float | None:
        """max q of the next undecided position, known before its token was drawn; None at the end."""

    @property
    def next_parent(self) -> int:
        """Which of the admitted drafts the next one follows, from 0, -1 for none; in a chain the last."""

    def admit(self) -> None:
        """Decides the next position in; the one after it becomes visible."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a step may spend on drafts, from measurements that are two steps old or older.

    rows: drafted rows at most; base_rows: rows of the step without drafts; keys: attended to by each row,
    on average; cost: None before anything was measured; calibration: from max q to a chance of acceptance;
    survivals: chances of the drafts of an earlier step to be accepted, the largest first.
    """

    rows: int
    base_rows: int = 1
    keys: float = 0.0
    cost: VerifyCost | None = None
    calibration: Calibration = field(default_factory=Calibration)
    survivals: tuple[float, ...] = ()

    def seconds(self, drafts: int) -> float:
        """The step's time with so many drafted rows; the same for all before anything was measured."""
        rows = max(1, self.base_rows + drafts)
        return self.cost.of(rows, rows * self.keys) if self.cost is not None else 1.0


class Planner(Protocol):
    """Two pure functions; a planner has no state but its configuration."""

    def plan(self, history: History) -> BlockPlan:
        """Before drafting: what is to be drafted."""

    def admit(self, frontiers: Sequence[Frontier], budget: Budget) -> list[int]:
        """Once blocks are in: draft rows to verify per sequence, at most `budget.rows` in all."""
