"""One budget of verify rows for two requests: who may look at what before a draft is verified or not.

Both requests draft two tokens, and a rule says how many of each are verified. It is exact under `rejection`
and `block` if it decides each position by what was known before that position's token was drawn, in whichever
request; under `coupled` however it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from cluster.lab.enumeration import Run, outcomes
from cluster.lab.rounds import Request, first
from cluster.lab.rules import own
from cluster.lab.world import Prefix, World, distance, random_world
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock

LENGTH = 2
# Steps a second by the drafts that are verified in all: a dip after the second, then nearly flat.
SPEEDS = (1.0, 0.93, 0.60, 0.58, 0.57)

Split = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """split: from the blocks of the requests, and the vocabulary, to how many drafts of each are verified;
    biased: the laws that it biases."""

    name: str
    split: Callable[[Sequence[DraftBlock], int], Split]
    biased: tuple[str, ...] = ()


def pairs() -> list[tuple[World, World]]:
    """Two requests with peaked rows, at random after every prefix."""
    return [
        (random_world(seed, 2, sharpness=2.0), random_world(100 + seed, 2, sharpness=2.0))
        for seed in range(8)
    ]


def played(run: Run, worlds: Sequence[World], law: Law, budget: Budget) -> tuple[Prefix, ...]:
    """What the requests have emitted after a round, under `coupled` as far as such a round can go."""
    requests = [Request(run, world, law, LENGTH) for world in worlds]
    blocks = [request.draft(which) for which, request in enumerate(requests)]
    counts = budget.split(blocks, worlds[0].vocab)
    for which, (request, block, count) in enumerate(zip(requests, blocks, counts, strict=True)):
        request.tokens += request.verify(first(block, count), seed=which).tokens
    return tuple(request.finish(LENGTH + 1) for request in requests)


def error(worlds: tuple[World, World], law: Law, budget: Budget) -> float:
    """TV between the first tokens of both requests together and their two targets."""
    vocab, horizon = worlds[0].vocab, LENGTH + 1
    emitted = torch.zeros(vocab ** (2 * horizon), dtype=torch.float64)
    for prefixes, probability in outcomes(lambda run: played(run, worlds, law, budget)).items():
        laws = [
            world.law({prefix: 1.0}, horizon).flatten()
            for world, prefix in zip(worlds, prefixes, strict=True)
        ]
        emitted += probability * torch.outer(*laws).flatten()
    truth = torch.outer(*(world.law({(): 1.0}, horizon).flatten() for world in worlds)).flatten()
    return distance(emitted, truth)


def _filled(known: Sequence[Sequence[float]], budget: int, speeds: Sequence[float] = ()) -> Split:
    """Admits one position at a time, the likeliest to survive first, by what is known of the next position of
    each request; with speeds, until goodput first drops."""
    counts, reach, kept = [0] * len(known), [1.0] * len(known), 0.0
    while sum(counts) < budget:
        offers = [
            (reach[i] * values[counts[i]], -i) for i, values in enumerate(known) if counts[i] < len(values)
        ]
        value, chosen = max(offers)
        if speeds:
            verified, tokens = sum(counts), len(known) + kept
            if (tokens + value) * speeds[verified + 1] < tokens * speeds[verified]:
                break
        counts[-chosen] += 1
        reach[-chosen] = value
        kept += value
    return tuple(counts)


def _known_before(blocks: Sequence[DraftBlock]) -> list[tuple[float, ...]]:
    return [block.max_q for block in blocks]


def _best_goodput(blocks: Sequence[DraftBlock], vocab: int) -> Split:
    """The best of all splits by the confidences of all positions, also of those after the ones decided."""

    def goodput(split: Split) -> float:
        tokens = float(len(blocks))
        for block, count in zip(blocks, split, strict=True):
            survival = 1.0
            for confidence in block.max_q[:count]:
                survival *= confidence
                tokens += survival
        return tokens * SPEEDS[sum(split)]

    return max(product(range(LENGTH + 1), repeat=len(blocks)), key=goodput)


_BOTH = ("rejection", "block")

BUDGETS: tuple[Budget, ...] = (
    Budget(
        "two requests: the likeliest max q's first",
        lambda blocks, vocab: _filled(_known_before(blocks), LENGTH),
    ),
    Budget(
        "two requests: until goodput first drops",
        lambda blocks, vocab: _filled(_known_before(blocks), 2 * LENGTH, SPEEDS),
    ),
    Budget("two requests: the best goodput of all splits", _best_goodput, _BOTH),
    Budget(
        "two requests: the tokens' own q's first",
        lambda blocks, vocab: _filled([own(block, vocab) for block in blocks], LENGTH),
        _BOTH,
    ),
)
