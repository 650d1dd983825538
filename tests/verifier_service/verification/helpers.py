"""Rounds in small worlds, integrated exactly by way of cluster.lab.enumeration."""

from __future__ import annotations

import torch

from cluster.lab.enumeration import ChosenDraft, ChosenNoise, outcomes
from cluster.lab.world import distance
from cluster.speculation.messages import DraftBlock
from cluster.speculation.proposal import pack
from verifier_service.verification import verify

DTYPES = [torch.float32, torch.float64]


def drafted(run, world, length, prefix=()):
    """A block drawn by the shipped draw from the proposals that it carries."""
    field = ChosenDraft(0, len(prefix), run)
    tokens, rows = (), []
    for k in range(length):
        rows.append(world.proposal((*prefix, *tokens)))
        tokens += (field.draw(k, rows[-1]),)
    return DraftBlock(tokens, tuple(max(row.probs) for row in rows), proposal=pack(rows))


def emitted(world, law, length, planner=None):
    """The law of the first length + 1 tokens, and the probabilities of what one round emits."""

    def round_of(run):
        n = length if planner is None else planner(run)
        block = drafted(run, world, n)
        noise = ChosenNoise(seed=0, base=0, run=run)
        return verify(law, world.rows((), block.tokens), block, noise).tokens

    found = outcomes(round_of)
    return world.law(found, length + 1), found


def target(world, length):
    return world.law({(): 1.0}, length)


def error(world, law, length, planner=None):
    return distance(emitted(world, law, length, planner)[0], target(world, length + 1))
