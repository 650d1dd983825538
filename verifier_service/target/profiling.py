"""The start-up profile: how long a verify step takes, by rows and context, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from cluster.scheduling import VerifyCost
from cluster.speculation.law import COUPLED
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import Noise
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.target.target import Rows, TargetModel
from verifier_service.verification import verify_together

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_BLOCK = 8
# Contexts of the profile: that of its rows, and a longer one for what context costs.
_SHORT, _LONG = 32, 512
_REPETITIONS = 3


def profile(target: TargetModel, most_rows: int) -> VerifyCost:
    """Times steps of up to `most_rows` rows with all that follows a forward; the fastest of a few each."""
    short, long = min(_SHORT, target.context // 4), min(_LONG, target.context - _BLOCK)
    counts = [count for count in _ROWS if count <= most_rows] or [1]
    seconds = [_step(target, count, short) for count in counts]
    per_key = 0.0
    if long > short:
        near, far = (_step(target, _BLOCK, context) for context in (short, long))
        per_key = max(0.0, (far - near) / (_BLOCK * (long - short)))
    return VerifyCost(tuple(counts), tuple(_rising(seconds)), per_key)


def _step(target: TargetModel, count: int, context: int) -> float:
    """Seconds of a step of `count` rows, in blocks as they come in batches."""
    sizes = [min(_BLOCK, count - start) for start in range(0, count, _BLOCK)]
    # The values of the keys do not matter, nor those of the tokens.
    batch = [Rows(target.pool.open(), [1] * n, context, n) for n in sizes]
    blocks = [DraftBlock((1,) * (n - 1), (1.0,) * (n - 1)) for n in sizes]
    best = float("inf")
    for _ in range(1 + _REPETITIONS):
        began = time.perf_counter()
        with torch.inference_mode():
            probs = [target_probs(logits, Sampling()) for logits in target.forward(batch)]
        noises = [Noise(0, context + index) for index in range(len(sizes))]
        verify_together(list(zip([COUPLED] * len(sizes), probs, blocks, noises, strict=True)))
        best = min(best, time.perf_counter() - began)
    for rows in batch:
        rows.cache.release()
    return best


def _rising(seconds: Sequence[float]) -> list[float]:
    """More rows never take less time, whatever was measured."""
    risen: list[float] = []
    for value in seconds:
        risen.append(max(value, risen[-1]) if risen else value)
    return risen
