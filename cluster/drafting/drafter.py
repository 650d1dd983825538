"""The protocol of a drafter: sessions by sequence number, tokens in, blocks out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from cluster.drafting.features import FeaturesInfo
from cluster.speculation.messages import DraftBlock, Forecast, SessionSpec


class DraftingError(Exception):
    """A drafter could not draft; the sequence goes on without."""


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One sequence's turn: commit these tokens, then draft at most `length` one after another behind them.

    width: of these, at most so many may follow the same ones; a drafter may make a chain all the same;
    stop_below: the block ends before a position whose max q is less; guess: of work ahead alone: tokens that
    are taken to follow the committed ones, for this block; fused: for a drafter that reads them, the fused
    features of the text's next tokens, [n, d], continuing those of earlier jobs.
    """

    sequence: int
    committed: tuple[int, ...]
    length: int
    stop_below: float = 0.0
    guess: tuple[int, ...] = ()
    fused: Tensor | None = None
    width: int = 1


def within(context: int, committed: int, length: int, longest: int = 0) -> int:
    """How many of `length` drafts after so many committed tokens a drafter can make. context: positions that
    it can see; longest: drafts of its blocks; 0 for any number."""
    length = min(length, longest) if longest else length
    # The last draft is not computed, so it may lie one past the context.
    return max(0, min(length, context + 1 - committed)) if context else length


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

    @property
    def context(self) -> int:
        """Positions that it can see, 0 for any number; it is asked for no more drafts than fit (`within`)."""

    @property
    def certain(self) -> bool:
        """Whether every draft follows from the committed tokens, so that none is drawn."""

    @property
    def longest(self) -> int:
        """Drafts of a block at most, 0 for any number."""

    @property
    def features(self) -> FeaturesInfo | None:
        """The fused features that it reads; they come with its jobs."""

    def open(self, spec: SessionSpec) -> None:
        """Begins a session, replacing one of the same number."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        """One block for each job, in order; shorter than asked, even empty, where it has nothing to say.

        A drafter that draws its tokens makes its blocks as long as they were asked for: under a law that
        takes their proposals, one that is shorter may have been cut for what it says.
        Raises DraftingError; KeyError for a sequence that is not open.
        """

    def close(self, sequence: int) -> None:
        """Frees a session; no error if there is none."""


@runtime_checkable
class Foreseer(Drafter, Protocol):
    """A drafter so cheap that it says what it would draft after every outcome of a round."""

    @property
    def repeats(self) -> int:
        """It drafts nothing unless so many last tokens occurred before, in this order; 0: no such rule."""

    def foresee(self, job: DraftJob) -> Forecast:
        """For the round that verifies the job's guess, after its committed tokens: blocks of at most the
        job's length. Exhaustive unless there is too much to tell."""
