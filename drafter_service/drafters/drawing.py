"""How a draft is drawn from a model's distributions, under each kind of law."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.messages import DraftBlock, SessionSpec
from cluster.speculation.noise import DraftField
from cluster.speculation.proposal import SparseRow, pack, truncate
from cluster.speculation.race import GumbelField


class Drawing(Protocol):
    """One block, token after token."""

    tokens: list[int]

    def next(self, probs: Tensor, stop_below: float) -> bool:
        """Draws a token, unless max q says to stop before it; probs: [V]."""

    def block(self) -> DraftBlock:
        """What was drawn."""


def drawing(spec: SessionSpec, base: int) -> Drawing:
    """A block after `base` committed tokens. A repeated job has the same block."""
    return _Proposing(spec, base) if LAWS[spec.law.name].sends_rows else _Coupled(spec, base)


class _Coupled:
    """Draws with the noise that will decide, at absolute positions."""

    def __init__(self, spec: SessionSpec, base: int) -> None:
        self.tokens: list[int] = []
        self._base = base
        self._noise = GumbelField(spec.noise_key)
        self._max_q: list[float] = []

    def next(self, probs: Tensor, stop_below: float) -> bool:
        max_q = float(probs.max())
        if max_q < stop_below:
            return False
        self._max_q.append(max_q)
        self.tokens.append(self._noise.winner(self._base + len(self.tokens), probs))
        return True

    def block(self) -> DraftBlock:
        return DraftBlock(tuple(self.tokens), tuple(self._max_q))


class _Proposing:
    """Draws from truncated rows, which it keeps, by noise of the round."""

    def __init__(self, spec: SessionSpec, base: int) -> None:
        self.tokens: list[int] = []
        self._noise = DraftField(spec.noise_key, base)
        self._entries = spec.proposal_entries
        self._rows: list[SparseRow] = []

    def next(self, probs: Tensor, stop_below: float) -> bool:
        row = truncate(probs, self._entries)
        if max(row.probs) < stop_below:
            return False
        self.tokens.append(self._noise.draw(len(self.tokens), row))
        self._rows.append(row)
        return True

    def block(self) -> DraftBlock:
        max_q = tuple(max(row.probs) for row in self._rows)
        return DraftBlock(tuple(self.tokens), max_q, proposal=pack(self._rows))
