"""Softmax of rows of logits."""

from __future__ import annotations

import numpy as np
from numba import prange

from cluster.kernels import compiled
from cluster.kernels.elementwise import REORDERED, exponential
from cluster.kernels.linear import Floats

_LEAST = np.float32(-87.0)


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


@compiled(parallel=True)
def softmax(x: Floats, temperature: np.float32, y: Floats) -> None:
    """y = softmax(x / temperature) by rows; x, y: [rows, V]; NaN in a row that has one, or no maximum."""
    for row in prange(x.shape[0]):
        most = x[row, 0]
        for value in x[row]:
            most = max(most, value)
        _softmax_row(x[row], most, temperature, y[row])
