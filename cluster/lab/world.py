"""Small worlds: a target and a drafter whose next-token rows depend on the whole prefix."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from cluster.speculation.proposal import SparseRow

Prefix = tuple[int, ...]
Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class World:
    """target: a prefix's next-token row, summing to 1; proposal: what a drafter draws from there."""

    vocab: int
    target: Callable[[Prefix], Row]
    proposal: Callable[[Prefix], SparseRow]

    def rows(self, prefix: Prefix, drafts: Sequence[int]) -> Tensor:
        """What a verifier computes for a chain: float64 [len(drafts) + 1, V]."""
        chain = [self.target((*prefix, *drafts[:k])) for k in range(len(drafts) + 1)]
        return torch.tensor(chain, dtype=torch.float64)

    def law(self, emitted: Mapping[Prefix, float], length: int) -> Tensor:
        """The law of the first `length` tokens: float64 [V] * length.

        emitted: probabilities of what came out; what is longer is cut, what is shorter goes on as the target.
        """
        total = torch.zeros((self.vocab,) * length, dtype=torch.float64)

        def add(prefix: Prefix, probability: float) -> None:
            if len(prefix) == length:
                total[prefix] += probability
                return
            for token, p in enumerate(self.target(prefix)):
                add((*prefix, token), probability * p)

        for prefix, probability in emitted.items():
            add(prefix[:length], probability)
        return total


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation distance of two laws."""
    return 0.5 * float((one - other).abs().sum())


def row_of(generator: random.Random, vocab: int, zeros: int, sharpness: float) -> Row:
    """A random row, uniform over the simplex at sharpness 1, with `zeros` tokens left out."""
    weights = [generator.expovariate(1.0) ** sharpness for _ in range(vocab)]
    for token in generator.sample(range(vocab), zeros):
        weights[token] = 0.0
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def random_world(
    seed: int, vocab: int, *, target_zeros: int = 0, proposal_zeros: int = 0, sharpness: float = 1.0
) -> World:
    """Rows drawn at random, fixed by seed and prefix; zeros: tokens without probability in each row."""

    @cache
    def target(prefix: Prefix) -> Row:
        return row_of(random.Random(f"p{seed}{prefix}"), vocab, target_zeros, sharpness)

    @cache
    def proposal(prefix: Prefix) -> SparseRow:
        row = row_of(random.Random(f"q{seed}{prefix}"), vocab, proposal_zeros, sharpness)
        sent = torch.tensor(row).tolist()
        kept = [(token, weight) for token, weight in enumerate(sent) if weight > 0.0]
        return SparseRow(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))

    return World(vocab, target, proposal)


def constant_world(target: Row, proposal: Row) -> World:
    """The same two rows after every prefix."""
    sent = torch.tensor(proposal).tolist()
    row = SparseRow(tuple(range(len(sent))), tuple(sent))
    return World(len(target), lambda prefix: target, lambda prefix: row)
