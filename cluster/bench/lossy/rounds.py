"""Rounds of drafting at places of real text: drafted once, and then verified under every law."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.bench.lossy.drafters import SIGHT, Drafting, window
from cluster.bench.statistics import Mean, mean_interval
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import pack, truncate
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.target.target import Rows, TargetModel
from verifier_service.verification import verify

# Drafts of a round.
BLOCK = 4
# Verdicts of a round, each with noise of its own.
_VERDICTS = 4


@dataclass(frozen=True, slots=True)
class Round:
    """rows: the target's after the prefix and after each draft, float32 [BLOCK + 1, V]; block: drawn from the
    proposal that it records; noises: the verifier's, for one verdict each."""

    rows: Tensor
    block: DraftBlock
    noises: tuple[Noise, ...]


def rounds(target: TargetModel, drafting: Drafting, text: Sequence[int], count: int) -> list[Round]:
    """After `count` prefixes of the text, evenly spaced, at temperature 1."""
    count = min(count, len(text) - SIGHT)
    return list(_backwards(target, drafting, text, count))


def acceptance_length(law: Law, where: Sequence[Round]) -> Mean:
    """Tokens of a round, the bonus or correction counted, as the shipped `verify` gives them. The rounds and
    their noise are the same for every law."""
    lengths = []
    for each in where:
        verdicts = [verify(law, each.rows, each.block, noise) for noise in each.noises]
        lengths.append(statistics.fmean(len(verdict.tokens) for verdict in verdicts))
    return mean_interval(lengths)


def _backwards(target: TargetModel, drafting: Drafting, text: Sequence[int], count: int) -> Iterator[Round]:
    """From the last prefix to the first, since drafts are written over the keys of what follows them."""
    cache = target.pool.open()
    target.forward([Rows(cache, text, 0, 0)])
    for seed in range(count):
        end = len(text) - seed * (len(text) - SIGHT) // count
        field = DraftField(derive_key(seed, Purpose.DRAFT), end)
        told = list(text[:end])
        rows, proposals = [], []
        for k in range(BLOCK + 1):
            [logits] = target.forward([Rows(cache, told[-1:], end - 1 + k, 1)])
            rows.append(target_probs(logits, Sampling())[0])
            if k < BLOCK:
                if drafting.sight:
                    [logits] = target.score([window(told, drafting.sight)], 1)
                drafts = target_probs(logits, Sampling(temperature=drafting.temperature))
                proposals.append(truncate(drafts[0]))
                told.append(field.draw(k, proposals[-1]))
        max_q = tuple(max(row.probs) for row in proposals)
        block = DraftBlock(tuple(told[end:]), max_q, proposal=pack(proposals))
        noises = tuple(Noise(seed * _VERDICTS + k, end) for k in range(_VERDICTS))
        yield Round(torch.stack(rows), block, noises)
    cache.release()
