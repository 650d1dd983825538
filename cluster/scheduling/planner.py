"""What a planner may see, and what it decides.

A plan is made before drafting from `History`; how many drafted rows enter a batch is decided from
`Frontier`s once the blocks are in. Neither type can hold a drafted token: a decision that depended on
one would change the law of the answer under every law but `coupled` (docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.speculation.messages import BlockPlan


@dataclass(frozen=True, slots=True)
class History:
    """A sequence's past at a round's start.

    committed: tokens so far, the prompt included; remaining: tokens that the request may still emit;
    accepted and drafted: per past round, in order.
    """

    committed: int
    remaining: int
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


class Frontier(Protocol):
    """One sequence's block as admission may see it: only the next undecided position, never ids."""

    @property
    def next_max_q(self) -> float | None:
        """max q of the next undecided position, known before its token was drawn; None at the end."""

    def admit(self) -> None:
        """Decides the next position in; the one after it becomes visible."""


class Planner(Protocol):
    def plan(self, history: History) -> BlockPlan:
        """Before drafting: a pure function of the past."""

    def admit(self, frontiers: Sequence[Frontier], budget: int) -> list[int]:
        """Once blocks are in: draft rows to verify per sequence, at most `budget` in all."""
