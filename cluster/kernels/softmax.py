"""From rows of logits to what tokens are drawn from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray, prange  # type: ignore[attr-defined]

from cluster.kernels import compiled
from cluster.kernels.attention import Integers
from cluster.kernels.bits import float_of_bits, floats_at
from cluster.kernels.elementwise import REORDERED, exponential
from cluster.kernels.linear import Floats

_LEAST = np.float32(-87.0)
# Logits that are looked through at a time: they stay in the first cache.
_BLOCK = 1024


@compiled()
def _largest_number(x: Floats) -> np.float32:
    """Of floats without a NaN: by integers in the same order, whose maxima are taken by whole vectors."""
    bits = x.view(np.int32)
    most = np.int32(-(2**31))
    for i in range(bits.shape[0]):
        most = max(most, bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    number: np.float32 = float_of_bits(most ^ ((most >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return number


@compiled()
def _largest(x: Floats) -> tuple[np.float32, int]:
    """The largest of a row, NaN if any is, and where the block begins that has it first."""
    most, begin, odd = np.float32(-np.inf), 0, 0
    for start in range(0, x.shape[0], _BLOCK):
        block = x[start : start + _BLOCK]
        for value in block:
            odd += value != value
        top = _largest_number(block)
        if top > most:
            most, begin = top, start
    return (np.float32(np.nan) if odd else most), begin


@compiled(fastmath=REORDERED)
def _softmax_row(x: Floats, most: np.float32, temperature: np.float32, y: Floats) -> None:
    total = np.float32(0)
    for i in range(x.shape[0]):
        z = (x[i] - most) / temperature
        # What is ruled out is at minus infinity and must come to nothing; what is no number must show.
        e = np.float32(0) if z < _LEAST else exponential(z) if z == z else z
        y[i] = e
        total += e
    scale = np.float32(1) / total
    for i in range(x.shape[0]):
        y[i] *= scale


@compiled()
def _greedy_row(x: Floats, most: np.float32, begin: int, y: Floats) -> None:
    """All of it on the first of the largest."""
    y[:] = 0
    while x[begin] != most:
        begin += 1
    y[begin] = 1


@compiled(parallel=True)
def distributions(rows: Integers, temperatures: npt.NDArray[np.float32], probs: Floats) -> None:
    """probs [rows, V] = softmax(x / temperature) of float32 rows x at the addresses `rows`, at temperature 0
    all on the first of the largest; NaN where a row has one, or no finite maximum."""
    for row in prange(rows.shape[0]):
        x = carray(floats_at(rows[row]), (probs.shape[1],))
        most, begin = _largest(x)
        if not np.isfinite(most):
            probs[row] = np.nan
        elif temperatures[row] == 0:
            _greedy_row(x, most, begin, probs[row])
        else:
            _softmax_row(x, most, temperatures[row], probs[row])
