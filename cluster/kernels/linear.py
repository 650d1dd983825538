"""Linear layers on weights packed in panels."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numba import intp, prange
from torch import Tensor

from cluster.kernels import compiled
from cluster.kernels.tile import PANEL, TILE, fetching_tile

Floats = npt.NDArray[np.float32]
Address: TypeAlias = "int | np.signedinteger[Any]"
# Depth to which all tiles are multiplied before going deeper, so that this part of a panel is read from
# memory once; and how far ahead of its use a panel is fetched.
_DEPTH = 128


def pack_weight(weight: Tensor) -> Floats:
    """A weight [out, in] as panels [ceil(out / PANEL), in, PANEL]; outputs beyond its own are zero."""
    out, depth = weight.shape
    panels = -(-out // PANEL)
    packed = torch.zeros(panels * PANEL, depth)
    packed[:out] = weight
    # Memory of numpy's own, which asks for huge pages: with small ones, looking up addresses takes longer
    # than multiplying.
    array: Floats = np.empty((panels, depth, PANEL), np.float32)
    array[:] = packed.view(panels, PANEL, depth).transpose(1, 2).numpy()
    return array


@compiled()
def panel_product(x: Address, rows: int, depth: int, w: Address, y: Address, y_step: int) -> None:
    """y [rows, PANEL] = x [rows, depth] w [depth, PANEL]: addresses of float32, y_step floats from one row
    of y to the next. depth: at least 1.
    """
    tiles = -(-rows // TILE)
    # While the part at hand is multiplied by all tiles, the next arrives: each tile asks for its share of it.
    share = 4 * PANEL // tiles
    part = depth if tiles == 1 else _DEPTH
    for k in range(0, depth, part):
        deep, row = min(part, depth - k), 0
        for tile in range(tiles):
            count = (rows - row) // (tiles - tile)
            left, out = x + 4 * (row * depth + k), y + 4 * row * y_step
            at = w + 4 * k * PANEL
            fetch = at + 4 * _DEPTH * PANEL + tile * deep * share
            fetching_tile(count, left, depth, at, PANEL, out, y_step, deep, k > 0, fetch, share)
            row += count


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
