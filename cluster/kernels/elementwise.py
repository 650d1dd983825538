"""What is done to single rows between the products: norms and the exponential."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from cluster.kernels import compiled
from cluster.kernels.bits import float_of_bits
from cluster.kernels.linear import Floats

# Sums may be taken in any order, the same for every row; NaN and infinities keep their meaning.
REORDERED = {"reassoc", "contract", "nsz", "arcp"}
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
# Rows between two products that one thread is done with sooner than several would have started.
FEW = 16


@compiled(inline="always")
def exponential(x: np.float32) -> np.float32:
    """e^x to a relative 2e-7 for -87 <= x <= 88, and at these edges beyond (polynomial: Cephes, expf).

    A library's would differ between whole vectors and the values left over at their end.
    """
    x = min(max(x, _LEAST), _MOST)
    whole = math.floor(x * _LOG2E + np.float32(0.5))
    x = x - whole * _LN2_HIGH
    x = x - whole * _LN2_LOW
    y = np.float32(1.9875691500e-4)
    y = y * x + np.float32(1.3981999507e-3)
    y = y * x + np.float32(8.3334519073e-3)
    y = y * x + np.float32(4.1665795894e-2)
    y = y * x + np.float32(1.6666665459e-1)
    y = y * x + np.float32(5.0000001201e-1)
    y = y * x * x + x + np.float32(1.0)
    power: np.float32 = float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
    return y * power


@compiled(fastmath=REORDERED)
def _sum_of_squares(x: Floats) -> np.float32:
    total = np.float32(0)
    # By index: over the values themselves it is not made into vectors.
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    return total


@compiled()
def inverse_rms(x: Floats, eps: np.float32) -> np.float32:
    """1 / sqrt(mean(x^2) + eps) of a vector."""
    scale: np.float32 = np.float32(1) / np.sqrt(_sum_of_squares(x) / np.float32(x.shape[0]) + eps)
    return scale


@compiled()
def _norm_row(x: Floats, weight: Floats, eps: np.float32, y: Floats) -> None:
    scale = inverse_rms(x, eps)
    for i in range(x.shape[0]):
        y[i] = x[i] * scale * weight[i]


@compiled(parallel=True)
def norm(x: Floats, weight: Floats, eps: np.float32, y: Floats) -> None:
    """y = x / sqrt(mean(x^2) + eps) * weight by rows; x, y: [rows, n] (RMSNorm: Zhang and Sennrich, arXiv
    1910.07467, section 3).
    """
    rows = x.shape[0]
    if rows <= FEW:
        for row in range(rows):
            _norm_row(x[row], weight, eps, y[row])
    else:
        for row in prange(rows):
            _norm_row(x[row], weight, eps, y[row])
