"""Parameters that change a row by the tokens before it: penalties, biases, what may not come yet or at all.

They change logits before the sampling transforms do, each row by exactly the tokens that stand before it:
in a block of drafts, those of its own path. In this order, with c(v) = how often v is in the output so far:

    logit_bias          logit(v) += bias(v)
    repetition_penalty  r: logit(v) / r where it is positive, · r where not, if v is in prompt or output
                        (Keskar et al., arXiv 1909.05858, section 4.1, with the sign rule of transformers)
    frequency_penalty   logit(v) -= f · c(v)
    presence_penalty    logit(v) -= p if c(v) > 0
    bad_words           the last token of a sequence is forbidden where the others stand before it, the prompt
                        included, as in transformers
    min_tokens          whatever would end the answer is forbidden before it has so many tokens
    a constraint        what its language does not allow is forbidden
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cluster.speculation.messages import DraftBlock

_FORBIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Controls:
    """The defaults change nothing. logit_bias: (token, bias); bad_words: sequences of tokens, none empty.

    Raises ValueError, naming the field, when out of range.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        # Written so that NaN fails each of them.
        for token, bias in self.logit_bias:
            if not -100.0 <= bias <= 100.0:
                raise ValueError(f"logit_bias must lie between -100 and 100, got {bias:g} for token {token}")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise ValueError(
                f"repetition_penalty must be above 0 and finite, got {self.repetition_penalty:g}"
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name} must lie between -2 and 2, got {getattr(self, name):g}")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens must be at least 0, got {self.min_tokens}")


class Constraint(Protocol):
    """A language that the output belongs to."""

    def emit(self, token: int) -> None:
        """One more token of the output."""

    def allowed(self, path: Sequence[int]) -> Tensor | None:
        """Whether each token may follow the output and `path`: bool [V]; None where no answer comes by."""


class Controller:
    """Applies the controls of one answer, whose tokens it is told. ends: tokens that end the answer;
    constraint: applied last, None for free text."""

    def __init__(
        self,
        controls: Controls,
        prompt: Iterable[int],
        ends: Iterable[int],
        constraint: Constraint | None = None,
    ) -> None:
        self._controls = controls
        self._text = list(prompt)
        self._prompt = frozenset(self._text)
        self._counts: Counter[int] = Counter()
        self._emitted = 0
        self._ends = list(ends)
        self._constraint = constraint
        self._idle = controls == Controls() and constraint is None

    def emit(self, token: int) -> None:
        """One more token of the output."""
        if self._idle:
            return
        if self._constraint is not None:
            self._constraint.emit(token)
        self._text.append(token)
        self._counts[token] += 1
        self._emitted += 1

    def apply(self, logits: Tensor, block: DraftBlock) -> Tensor:
        """logits: float32 [N+1, V], row 0 after the output so far, row i + 1 after draft i and those before
        it; unchanged. Each row of the result depends on its own logits and path alone, bit for bit."""
        if self._idle:
            return logits
        rows = logits.clone()
        for row, path in zip(rows, _paths(block), strict=True):
            self._control(row, path)
            if self._constraint is not None and (allowed := self._constraint.allowed(path)) is not None:
                row[~allowed.to(row.device)] = _FORBIDDEN
        return rows

    def _control(self, row: Tensor, path: Sequence[int]) -> None:
        controls = self._controls
        if controls.logit_bias:
            ids, biases = zip(*controls.logit_bias, strict=True)
            row[_index(row, ids)] += torch.tensor(biases, dtype=row.dtype, device=row.device)
        if controls.repetition_penalty != 1.0:
            seen = _index(row, self._prompt.union(self._counts, path))
            values, penalty = row[seen], controls.repetition_penalty
            row[seen] = torch.where(values > 0, values / penalty, values * penalty)
        if controls.frequency_penalty or controls.presence_penalty:
            counts = self._counts + Counter(path)
            times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
            loss = controls.frequency_penalty * times + controls.presence_penalty
            row[_index(row, counts)] -= loss
        forbidden = [word[-1] for word in controls.bad_words if self._ends_with(word[:-1], path)]
        if self._emitted + len(path) < controls.min_tokens:
            forbidden += self._ends
        if forbidden:
            row[_index(row, forbidden)] = _FORBIDDEN

    def _ends_with(self, tokens: tuple[int, ...], path: Sequence[int]) -> bool:
        size = len(tokens)
        if not size:
            return True
        last = [*self._text[-size:], *path][-size:]
        return tuple(last) == tokens


def _paths(block: DraftBlock) -> list[list[int]]:
    """The drafts before each row's position, root first: N + 1 of them."""
    paths: list[list[int]] = [[]]
    for index, token in enumerate(block.tokens):
        parent = index - 1 if block.parents is None else block.parents[index]
        paths.append([*paths[parent + 1], token])
    return paths


def _index(row: Tensor, ids: Iterable[int]) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=row.device)
