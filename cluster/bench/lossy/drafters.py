"""Drafters made from the target itself, so that their distributions differ from its in a known way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.target.target import TargetModel

# Tokens that the short-sighted drafter sees: enough for grammar, too few for the task.
SIGHT = 8
_BATCH = 48


@dataclass(frozen=True, slots=True)
class Drafting:
    """sight: the last tokens that are seen, 0 for all; temperature: of the drafts' distribution."""

    name: str
    sight: int
    temperature: float


SHORT_SIGHTED = Drafting(f"sees the last {SIGHT} tokens", SIGHT, 1.0)
FLAT = Drafting("at temperature 1.5", 0, 1.5)
DRAFTINGS = (SHORT_SIGHTED, FLAT)


def window(tokens: Sequence[int], sight: int = SIGHT) -> list[int]:
    """What a reader who sees only the last of `tokens` sees."""
    return list(tokens[-sight:])


def proposals(target: TargetModel, drafting: Drafting, tokens: Sequence[int], logits: Tensor) -> Tensor:
    """The drafter's distribution after every position of a text: float32 [positions, V].

    tokens: the text; logits: the target's own, [positions, V], of its last positions.
    """
    if drafting.sight:
        first = len(tokens) - logits.shape[0]
        ends = [tokens[: first + k + 1] for k in range(logits.shape[0])]
        rows = []
        for start in range(0, len(ends), _BATCH):
            rows += target.score([window(end, drafting.sight) for end in ends[start : start + _BATCH]], 1)
        logits = torch.cat(rows)
    return target_probs(logits, Sampling(temperature=drafting.temperature))
