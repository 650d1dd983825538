"""How a draft is drawn from a model's distributions, under each kind of law."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.messages import DraftBlock, SessionSpec
from cluster.speculation.noise import DraftField
from cluster.speculation.proposal import SparseRow, pack, truncate
from cluster.speculation.race import GumbelField
from cluster.speculation.sampling import target_probs


class Drawing(Protocol):
    """One block, token after token."""

    tokens: list[int]

    def next(self, logits: Tensor, stop_below: float) -> bool:
        """Draws a token, unless max q says to stop before it; logits: float32 [V]."""

    def block(self) -> DraftBlock:
        """What was drawn."""


def drawing(spec: SessionSpec, base: int, width: int = 1) -> Drawing:
    """A block after `base` committed tokens; width: tokens of it that may follow the same ones, where the law
    takes trees. A repeated job has the same block."""
    if LAWS[spec.law.name].sends_rows:
        return _Proposing(spec, base)
    return _Coupled(spec, base) if width == 1 else _Branching(spec, base, width)


class _Coupled:
    """Draws with the noise that will decide, at absolute positions."""

    def __init__(self, spec: SessionSpec, base: int) -> None:
        self.tokens: list[int] = []
        self._base = base
        self._sampling = spec.sampling
        self._noise = GumbelField(spec.noise_key)
        self._max_q: list[float] = []

    def next(self, logits: Tensor, stop_below: float) -> bool:
        probs = target_probs(logits[None], self._sampling)[0]
        max_q = float(probs.max())
        if max_q < stop_below:
            return False
        self._beside(logits, probs)
        self._max_q.append(max_q)
        self.tokens.append(self._winner(probs))
        return True

    def _winner(self, probs: Tensor) -> int:
        return self._noise.winner(self._base + len(self.tokens), probs)

    def _beside(self, logits: Tensor, probs: Tensor) -> None:
        """What else may be drafted at the position that comes next."""

    def block(self) -> DraftBlock:
        return DraftBlock(tuple(self.tokens), tuple(self._max_q))


class _Branching(_Coupled):
    """A chain with siblings: at each position the tokens next to win the race that decides, the likeliest
    ones at temperature 0. The chain alone goes on.

    They stand in the order of how likely the drafter thinks them to be reached, by the largest entries of its
    rows and not by what was drawn from them: what is not verified is cut from the end.
    """

    def __init__(self, spec: SessionSpec, base: int, width: int) -> None:
        super().__init__(spec, base)
        self._width = width
        # At each position: its siblings, and the largest of q there, for the first draft and each sibling.
        self._siblings: list[list[int]] = []
        self._largest: list[list[float]] = []

    def _beside(self, logits: Tensor, probs: Tensor) -> None:
        if self._sampling.temperature == 0.0:
            probs = logits.softmax(dim=-1)
            near = probs.topk(min(self._width, len(probs)))
            first = int(logits.argmax())
            siblings = [token for token in near.indices.tolist() if token != first][: self._width - 1]
            largest = near.values.tolist()
        else:
            largest = probs.topk(min(self._width, len(probs))).values.tolist()
            left, siblings = probs.clone(), []
            for value in largest[1:]:
                left[siblings[-1] if siblings else self._winner(probs)] = 0.0
                if value == 0.0 or not bool(left.any()):
                    break
                siblings.append(self._winner(left))
        self._siblings.append(siblings)
        self._largest.append(largest)

    def block(self) -> DraftBlock:
        # (how likely it is, position, which of the siblings)
        drafts: list[tuple[float, int, int]] = []
        reach = 1.0
        for k, (siblings, largest) in enumerate(zip(self._siblings, self._largest, strict=True)):
            values = largest[: 1 + len(siblings)]
            drafts += [(reach * value, k, rank) for rank, value in enumerate(values)]
            reach *= largest[0]
        drafts.sort(key=lambda draft: (-draft[0], draft[1], draft[2]))
        tokens: list[int] = []
        max_q: list[float] = []
        parents: list[int] = []
        places = {-1: -1}
        for _, k, rank in drafts:
            parents.append(places[k - 1])
            if rank == 0:
                places[k] = len(tokens)
            tokens.append(self._siblings[k][rank - 1] if rank else self.tokens[k])
            max_q.append(self._largest[k][rank] if rank else self._max_q[k])
        chain = parents == [*range(-1, len(tokens) - 1)]
        return DraftBlock(tuple(tokens), tuple(max_q), None if chain else tuple(parents))


class _Proposing:
    """Draws from truncated rows, which it keeps, by noise of the round."""

    def __init__(self, spec: SessionSpec, base: int) -> None:
        self.tokens: list[int] = []
        self._sampling = spec.sampling
        self._noise = DraftField(spec.noise_key, base)
        self._entries = spec.proposal_entries
        self._rows: list[SparseRow] = []

    def next(self, logits: Tensor, stop_below: float) -> bool:
        row = truncate(target_probs(logits[None], self._sampling)[0], self._entries)
        if max(row.probs) < stop_below:
            return False
        self.tokens.append(self._noise.draw(len(self.tokens), row))
        self._rows.append(row)
        return True

    def block(self) -> DraftBlock:
        max_q = tuple(max(row.probs) for row in self._rows)
        return DraftBlock(tuple(self.tokens), max_q, proposal=pack(self._rows))
