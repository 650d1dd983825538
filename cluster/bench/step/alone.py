"""The step of a single sequence: a block's against one row's, and one row's against reading the weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cluster.bench.statistics import Ratio, paired_ratio
from cluster.kernels.attention import PAGE
from verifier_service.target.target import Rows, TargetModel

# The most that they may cost.
BLOCK_TARGET, ROW_TARGET = 1.4, 2.5


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds, in turn: of a step of one row, of one of `rows` rows, and of reading as many bytes as the
    weights have with all threads."""

    rows: int
    one: tuple[float, ...]
    block: tuple[float, ...]
    reading: tuple[float, ...]

    @property
    def block_over_row(self) -> Ratio:
        return paired_ratio(self.block, self.one)

    @property
    def row_over_reading(self) -> Ratio:
        return paired_ratio(self.one, self.reading)


def alone(target: TargetModel, text: list[int], rows: int, weights: int, repeats: int) -> Alone:
    """text: what the sequence has before the step; weights: their bytes."""
    pool = target.new_pool(len(text) + rows + PAGE)
    cache = pool.open()
    target.forward([Rows(cache, text, 0, 0)])
    drafts = [text[k % len(text)] for k in range(rows)]
    data = torch.ones(max(1, weights // 4))
    ways: tuple[Callable[[], object], ...] = (
        lambda: target.forward([Rows(cache, drafts[:1], len(text), 1)]),
        lambda: target.forward([Rows(cache, drafts, len(text), rows)]),
        data.sum,
    )
    for way in ways:
        way()
    times = [tuple(_seconds(way) for way in ways) for _ in range(repeats)]
    one, block, reading = zip(*times, strict=True)
    return Alone(rows, one, block, reading)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
