"""Linear layers on weights packed in panels."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numba import intp, prange
from torch import Tensor

from cluster.kernels import compiled
from cluster.kernels.tile import AHEAD, PANEL, multiply_panel

Floats = npt.NDArray[np.float32]
Address: TypeAlias = "int | np.signedinteger[Any]"
# Depth to which all rows are multiplied before going deeper: this part of a panel stays in the nearest cache.
_DEPTH = AHEAD // PANEL


def pack_weight(weight: Tensor) -> Floats:
    """A weight [out, in] as panels [ceil(out / PANEL), in, PANEL]; outputs beyond its own are zero."""
    out, depth = weight.shape
    panels = -(-out // PANEL)
    packed = torch.zeros(panels * PANEL, depth)
    packed[:out] = weight
    array: Floats = packed.view(panels, PANEL, depth).transpose(1, 2).contiguous().numpy()
    return array


@compiled()
def panel_product(x: Address, rows: int, depth: int, w: Address, y: Address, y_step: int) -> None:
    """y [rows, PANEL] = x [rows, depth] w [depth, PANEL]: addresses of float32, y_step floats from one row
    of y to the next. depth: at least 1.
    """
    for k in range(0, depth, _DEPTH):
        deep = min(_DEPTH, depth - k)
        multiply_panel(x + 4 * k, depth, rows, w + 4 * k * PANEL, PANEL, y, y_step, deep, k > 0)


@compiled(parallel=True)
def linear(x: Floats, w: Floats, y: Floats) -> None:
    """y [rows, panels * PANEL] = x [rows, in] times the weight in w [panels, in, PANEL]."""
    rows, depth = x.shape
    left, panels, out = intp(x.ctypes.data), intp(w.ctypes.data), intp(y.ctypes.data)
    width = y.shape[1]
    for panel in prange(w.shape[0]):
        panel_product(left, rows, depth, panels + 4 * panel * depth * PANEL, out + 4 * panel * PANEL, width)


@compiled(parallel=True)
def add_linear(x: Floats, w: Floats, y: Floats) -> None:
    """y [rows, out] += x [rows, in] times the weight in w; each product is summed before it is added."""
    rows, depth = x.shape
    left, panels = intp(x.ctypes.data), intp(w.ctypes.data)
    for panel in prange(w.shape[0]):
        product = np.empty((rows, PANEL), np.float32)
        panel_product(left, rows, depth, panels + 4 * panel * depth * PANEL, intp(product.ctypes.data), PANEL)
        first = panel * PANEL
        count = min(PANEL, y.shape[1] - first)
        for row in range(rows):
            out, part = y[row, first : first + count], product[row]
            for i in range(count):
                out[i] += part[i]
