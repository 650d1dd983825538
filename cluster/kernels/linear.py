"""Linear layers on weights packed in panels."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numba import intp, prange
from torch import Tensor

from cluster.kernels import compiled
from cluster.kernels.tile import PANEL, TILE, fetching_tile

Floats = npt.NDArray[np.float32]
Integers8 = npt.NDArray[np.int8]
Address: TypeAlias = "int | np.signedinteger[Any]"
# Depth to which all tiles are multiplied before going deeper, so that this part of a panel is read from
# memory once; and how far ahead of its use a panel is fetched.
_DEPTH = 128
_LARGEST = 127


class Panels(NamedTuple):
    """A weight [out, in], cut into panels. values: [panels, in, PANEL], float32 or int8; scales: of the
    outputs of integers, [panels, PANEL], else [panels, 0]. Several weights lie one after another in one more
    dimension of both. Outputs beyond the weight's own are zero.
    """

    values: Floats | Integers8
    scales: Floats


def pack_weight(weight: Tensor, integers: bool = False) -> Panels:
    """A float32 weight [out, in] as it is, or as the nearest integers of `integers_of`."""
    out, depth = weight.shape
    panels = -(-out // PANEL)
    packed = torch.zeros(panels * PANEL, depth)
    packed[:out] = weight
    scales = np.empty((panels, 0), np.float32)
    if integers:
        packed, scale = integers_of(packed)
        scales = scale.view(panels, PANEL).numpy()
    # Memory of numpy's own, which asks for huge pages: with small ones, looking up addresses takes longer
    # than multiplying.
    values = np.empty((panels, depth, PANEL), np.int8 if integers else np.float32)
    values[:] = packed.view(panels, PANEL, depth).transpose(1, 2).numpy()
    return Panels(values, scales)


def integers_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The integers from -127 to 127 nearest to a weight [out, in] over each output's scale, and the scales
    [out]: an output's largest weight is 127 times its scale."""
    scale = weight.abs().amax(dim=1) / _LARGEST
    return (weight / scale.where(scale > 0, 1)[:, None]).round(), scale


@compiled(inline="always")
def one_of(weights: Panels, index: int) -> Panels:
    """One of several weights."""
    return Panels(weights.values[index], weights.scales[index])


@compiled()
def panel_product(x: Address, rows: int, depth: int, w: Panels, panel: int, y: Address, y_step: int) -> None:
    """y [rows, PANEL] = x [rows, depth] times a panel of w: addresses of float32, y_step floats from one row
    of y to the next. depth: at least 1.
    """
    step = PANEL * w.values.itemsize
    start = intp(w.values.ctypes.data) + panel * depth * step
    scales = intp(w.scales.ctypes.data) + 4 * panel * PANEL if w.scales.shape[1] else 0
    tiles = -(-rows // TILE)
    # While the part at hand is multiplied by all tiles, the next arrives: each tile asks for its share of it.
    share = step // tiles
    part = depth if tiles == 1 else _DEPTH
    for k in range(0, depth, part):
        deep, row = min(part, depth - k), 0
        scale = scales if k + deep == depth else 0
        for tile in range(tiles):
            count = (rows - row) // (tiles - tile)
            left, out = x + 4 * (row * depth + k), y + 4 * row * y_step
            at = start + k * step
            fetch = at + _DEPTH * step + tile * deep * share
            fetching_tile(
                w.values, count, left, depth, at, PANEL, out, y_step, deep, k > 0, fetch, share, scale
            )
            row += count


@compiled(parallel=True)
def linear(x: Floats, w: Panels, y: Floats) -> None:
    """y [rows, panels * PANEL] = x [rows, in] times the weight in w."""
    rows, depth = x.shape
    left, out, width = intp(x.ctypes.data), intp(y.ctypes.data), y.shape[1]
    for panel in prange(w.values.shape[0]):
        panel_product(left, rows, depth, w, panel, out + 4 * panel * PANEL, width)


@compiled(parallel=True)
def add_linear(x: Floats, w: Panels, y: Floats) -> None:
    """y [rows, out] += x [rows, in] times the weight in w; each product is summed before it is added."""
    rows, depth = x.shape
    left = intp(x.ctypes.data)
    for panel in prange(w.values.shape[0]):
        product = np.empty((rows, PANEL), np.float32)
        panel_product(left, rows, depth, w, panel, intp(product.ctypes.data), PANEL)
        first = panel * PANEL
        count = min(PANEL, y.shape[1] - first)
        for row in range(rows):
            out, part = y[row, first : first + count], product[row]
            for i in range(count):
                out[i] += part[i]
