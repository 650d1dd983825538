"""The protocol of a drafter: sessions by sequence number, tokens in, blocks out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.speculation.messages import DraftBlock, SessionSpec


class DraftingError(Exception):
    """A drafter could not draft; the sequence goes on without."""


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One sequence's turn: commit these tokens, then draft at most `length` after them.

    stop_below: the block ends before a position whose max q is less; guess: tokens that are taken to follow
    the committed ones for this block alone.
    """

    sequence: int
    committed: tuple[int, ...]
    length: int
    stop_below: float = 0.0
    guess: tuple[int, ...] = ()


class Drafter(Protocol):
    """Proposes continuations of committed text. Not thread-safe: one caller at a time."""

    @property
    def model(self) -> str:
        """What drafts, as an operator knows it."""

    @property
    def revision(self) -> str:
        """Which version of it; empty without weights."""

    @property
    def kind(self) -> str:
        """The drafter's kind, such as "ngram"."""

    def open(self, spec: SessionSpec) -> None:
        """Begins a session, replacing one of the same number."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        """One block for each job, in order; shorter than asked, even empty, where it has nothing to say.

        Raises DraftingError; KeyError for a sequence that is not open.
        """

    def close(self, sequence: int) -> None:
        """Frees a session; no error if there is none."""
