"""Attention of single rows over paged keys and values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import intp, prange

from cluster.kernels import compiled
from cluster.kernels.elementwise import FEW, REORDERED, exponential
from cluster.kernels.linear import Floats
from cluster.kernels.tile import LANES, PANEL, multiply_lanes, multiply_panel

Integers = npt.NDArray[np.int64]
# Tokens of a page. Keys lie dimension by dimension in it: one vector holds one dimension of all its tokens.
PAGE = LANES
# Rows of a sequence that read its keys together.
_TOGETHER = 4


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
def _softmax_of_path(
    scores: Floats,
    begin: int,
    row: int,
    first: int,
    positions: Integers,
    slots: Integers,
    above: Integers,
) -> None:
    """Of a row of a tree: scores by slots, from slot `begin` on, in place; zero where the row sees nothing.

    They are lined up by positions as they would lie if the row's path were all there is, and put back: so the
    order of every sum is that of a chain, and zeros between the path's slots add nothing.
    """
    position = positions[row]
    start = first // PAGE * PAGE
    lined = scores[start - begin : position // PAGE * PAGE + PAGE - begin].copy()
    at = row
    while above[at] >= 0:
        if positions[at] >= first:
            lined[positions[at] - start] = scores[slots[at] - begin]
        at = above[at]
    root = positions[at]
    _softmax(lined, first - start, position + 1 - start)
    scores[:] = 0
    for place in range(first, root + 1):
        scores[place - begin] = lined[place - start]
    at = row
    while above[at] >= 0:
        if positions[at] >= first:
            scores[slots[at] - begin] = lined[positions[at] - start]
        at = above[at]


# An array is freed after the last line that names it, whatever addresses were taken of it: so these take
# arrays, which whoever calls them holds.


@compiled()
def _scored(queries: Floats, keys: Floats, pages: Integers, head: int, scores: Floats) -> None:
    """scores: [rows · group, tokens], of queries [rows, group, dim] with the keys of the pages' tokens."""
    count, width = scores.shape
    kv_heads, dim = keys.shape[1], keys.shape[2]
    left, held, out = intp(queries.ctypes.data), intp(keys.ctypes.data), intp(scores.ctypes.data)
    size = 4 * PAGE * dim
    for number in range(pages.shape[0]):
        key = held + (pages[number] * kv_heads + head) * size
        multiply_lanes(left, dim, count, key, PAGE, out + 4 * number * PAGE, width, dim, False)


@compiled()
def _summed(scores: Floats, values: Floats, pages: Integers, head: int, result: Floats) -> None:
    """result: [rows, group, dim], of the values of the pages' tokens, by scores [rows · group, tokens]."""
    count, width = scores.shape
    kv_heads, dim = values.shape[1], values.shape[3]
    left, held, into = intp(scores.ctypes.data), intp(values.ctypes.data), intp(result.ctypes.data)
    size = 4 * PAGE * dim
    for number in range(pages.shape[0]):
        value = held + (pages[number] * kv_heads + head) * size
        part, add, done = left + 4 * number * PAGE, number > 0, 0
        while dim - done >= PANEL:
            multiply_panel(part, width, count, value + 4 * done, dim, into + 4 * done, dim, PAGE, add)
            done += PANEL
        while done < dim:
            multiply_lanes(part, width, count, value + 4 * done, dim, into + 4 * done, dim, PAGE, add)
            done += LANES


@compiled()
def _attend_rows(
    query: Floats,
    keys: Floats,
    values: Floats,
    pages: Integers,
    head: int,
    row: int,
    positions: Integers,
    slots: Integers,
    above: Integers,
    window: int,
    out: Floats,
) -> None:
    """A few rows of one sequence, [rows, heads, dim], from row `row` on; the queries of one key head."""
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    count, own = rows * group, slice(head * group, (head + 1) * group)
    start = _first(positions[row], window)
    for other in range(row + 1, row + rows):
        start = min(start, _first(positions[other], window))
    start, stop = start // PAGE, slots[row + rows - 1] // PAGE + 1
    width = (stop - start) * PAGE
    queries, scores = np.empty((rows, group, dim), np.float32), np.zeros((count, width), np.float32)
    result = np.empty((rows, group, dim), np.float32)
    queries[:] = query[:, own]
    _scored(queries, keys, pages[start:stop], head, scores)
    for index in range(count):
        mine_row = row + index // group
        position = positions[mine_row]
        first = _first(position, window)
        if above[mine_row] >= 0:
            _softmax_of_path(scores[index], start * PAGE, mine_row, first, positions, slots, above)
            continue
        # Of the pages that the row would have alone: the order of its sums is theirs.
        begin, end = first // PAGE, position // PAGE + 1
        scores[index, : (begin - start) * PAGE] = 0
        scores[index, (end - start) * PAGE :] = 0
        mine = scores[index, (begin - start) * PAGE : (end - start) * PAGE]
        _softmax(mine, first - begin * PAGE, position + 1 - begin * PAGE)
    _summed(scores, values, pages[start:stop], head, result)
    out[:, own] = result


@compiled(inline="always")
def _first(position: int, window: int) -> int:
    """The first position that a row sees."""
    return max(0, position - window + 1) if window else 0


@compiled(parallel=True)
def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    tables: Integers,
    owners: Integers,
    positions: Integers,
    slots: Integers,
    above: Integers,
    window: int,
    out: Floats,
) -> None:
    """query, out: [rows, heads, dim], the queries scaled; keys: [pages, kv_heads, dim, PAGE]; values: [pages,
    kv_heads, PAGE, dim]; tables: each sequence's pages, [sequences, most]; owners, positions, slots: of the
    rows, their sequences, their places in the text and in the pages, those of a sequence together and in
    ascending slots; above: -1 for a row whose slot is its position and that sees all before it, else, in a
    tree, the row that it follows; window: positions that a row sees, its own included, 0 for all. dim: a
    multiple of LANES. What lies in a page beyond a row's slot must be finite.
    """
    rows, kv_heads = query.shape[0], keys.shape[1]
    # Of each task: its rows and its key head. Those of one head follow one another, so that one thread reads
    # its keys and values.
    firsts, ends, heads = np.empty((3, rows * kv_heads), np.int64)
    tasks, begin = 0, 0
    while begin < rows:
        end = begin + 1
        while end < rows and owners[end] == owners[begin]:
            end += 1
        chunks = -(-(end - begin) // _TOGETHER)
        for head in range(kv_heads):
            for chunk in range(chunks):
                firsts[tasks] = begin + (end - begin) * chunk // chunks
                ends[tasks] = begin + (end - begin) * (chunk + 1) // chunks
                heads[tasks] = head
                tasks += 1
        begin = end
    for task in prange(tasks):
        first = firsts[task]
        mine, pages = slice(first, ends[task]), tables[owners[first]]
        _attend_rows(
            query[mine],
            keys,
            values,
            pages,
            heads[task],
            first,
            positions,
            slots,
            above,
            window,
            out[mine],
        )


@compiled()
def _store_row(key: Floats, value: Floats, keys: Floats, values: Floats, pages: Integers, slot: int) -> None:
    page, place = pages[slot // PAGE], slot % PAGE
    for head in range(key.shape[0]):
        values[page, head, place] = value[head]
        for d in range(key.shape[1]):
            keys[page, head, d, place] = key[head, d]


@compiled(parallel=True)
def store(
    key: Floats,
    value: Floats,
    keys: Floats,
    values: Floats,
    tables: Integers,
    owners: Integers,
    slots: Integers,
) -> None:
    """Writes the rows' keys and values, [rows, kv_heads, dim], to their pages; see `attend`."""
    rows = key.shape[0]
    if rows <= FEW:
        # Rows of one page lie in the same cache lines, for which several threads would fight.
        for row in range(rows):
            _store_row(key[row], value[row], keys, values, tables[owners[row]], slots[row])
    else:
        for row in prange(rows):
            _store_row(key[row], value[row], keys, values, tables[owners[row]], slots[row])
