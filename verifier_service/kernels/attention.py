"""Attention of single rows over paged keys and values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import intp, prange

from verifier_service.kernels import compiled
from verifier_service.kernels.elementwise import REORDERED, exponential
from verifier_service.kernels.linear import Floats
from verifier_service.kernels.tile import LANES, PANEL, multiply_lanes, multiply_panel

Integers = npt.NDArray[np.int64]
# Tokens of a page. Keys lie dimension by dimension in it: one vector holds one dimension of all its tokens.
PAGE = LANES


@compiled(fastmath=REORDERED)
def _softmax(scores: Floats, first: int, last: int) -> None:
    """Of scores[first:last], in place; zero elsewhere."""
    most = scores[first]
    for i in range(first, last):
        most = max(most, scores[i])
    for i in range(scores.shape[0]):
        scores[i] = exponential(scores[i] - most)
    scores[:first] = 0
    scores[last:] = 0
    total = np.float32(0)
    for i in range(scores.shape[0]):
        total += scores[i]
    scale = np.float32(1) / total
    for i in range(scores.shape[0]):
        scores[i] *= scale


@compiled()
def _attend_row(
    query: Floats,
    keys: Floats,
    values: Floats,
    pages: Integers,
    head: int,
    position: int,
    window: int,
    out: Floats,
) -> None:
    """One row's queries of one key head, [group, dim]."""
    group, dim = query.shape
    kv_heads = keys.shape[1]
    first = max(0, position - window + 1) if window else 0
    start, stop = first // PAGE, position // PAGE + 1
    width = (stop - start) * PAGE
    scores = np.empty((group, width), np.float32)
    queries, score, result = intp(query.ctypes.data), intp(scores.ctypes.data), intp(out.ctypes.data)
    key_pages, value_pages = intp(keys.ctypes.data), intp(values.ctypes.data)
    size = 4 * PAGE * dim
    for number in range(start, stop):
        key = key_pages + (pages[number] * kv_heads + head) * size
        part = score + 4 * (number - start) * PAGE
        multiply_lanes(queries, dim, group, key, PAGE, part, width, dim, False)
    for member in range(group):
        _softmax(scores[member], first - start * PAGE, position + 1 - start * PAGE)
    for number in range(start, stop):
        value = value_pages + (pages[number] * kv_heads + head) * size
        part = score + 4 * (number - start) * PAGE
        add, done = number > start, 0
        while dim - done >= PANEL:
            multiply_panel(part, width, group, value + 4 * done, dim, result + 4 * done, dim, PAGE, add)
            done += PANEL
        while done < dim:
            multiply_lanes(part, width, group, value + 4 * done, dim, result + 4 * done, dim, PAGE, add)
            done += LANES


@compiled(parallel=True)
def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Integers,
    owners: Integers,
    positions: Integers,
    window: int,
    out: Floats,
) -> None:
    """query, out: [rows, heads, dim], the queries scaled; keys: [pages, kv_heads, dim, PAGE]; values: [pages,
    kv_heads, PAGE, dim]; tables: each sequence's pages, [sequences, most]; owners, positions: the rows'
    sequences and places; window: positions that a row sees, its own included, 0 for all. dim: a multiple
    of LANES. What lies in a page beyond a row's position must be finite.
    """
    kv_heads = keys.shape[1]
    group = query.shape[1] // kv_heads
    for task in prange(query.shape[0] * kv_heads):
        row, head = task // kv_heads, task % kv_heads
        own = slice(head * group, (head + 1) * group)
        pages = tables[owners[row]]
        _attend_row(query[row, own], keys, values, pages, head, positions[row], window, out[row, own])


@compiled(parallel=True)
def store(
    key: Floats,
    value: Floats,
    keys: Floats,
    values: Floats,
    tables: Integers,
    owners: Integers,
    positions: Integers,
) -> None:
    """Writes the rows' keys and values, [rows, kv_heads, dim], to their pages; see `attend`."""
    for row in prange(key.shape[0]):
        page, place = tables[owners[row], positions[row] // PAGE], positions[row] % PAGE
        for head in range(key.shape[1]):
            values[page, head, place] = value[row, head]
            for d in range(key.shape[2]):
                keys[page, head, d, place] = key[row, head, d]
