"""Kernels use no memory that was freed: whatever is freed in tests is filled with other bytes (conftest)."""

import sys

import numpy as np
import pytest
from numba import intp, njit

from cluster.kernels.attention import PAGE, attend
from cluster.kernels.tile import multiply_lanes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only glibc fills what is freed")


@njit
def _sums_of(rows, address):
    """Of `rows` rows of PAGE numbers from an address, by way of a kernel's product with ones."""
    ones, sums = np.ones((PAGE, PAGE), np.float32), np.zeros((rows, PAGE), np.float32)
    multiply_lanes(
        address, PAGE, rows, intp(ones.ctypes.data), PAGE, intp(sums.ctypes.data), PAGE, PAGE, False
    )
    return sums[:, 0] + ones[0, 0] - np.float32(1)


@njit
def _held(rows):
    given = np.ones((rows, PAGE), np.float32)
    address, total = intp(given.ctypes.data), np.zeros(rows, np.float32)
    for _ in range(2):
        total += _sums_of(rows, address)
    return total + given[0, 0] - np.float32(1)


@njit
def _freed(rows):
    """The same, but that an array is freed after the last line that names it."""
    given = np.ones((rows, PAGE), np.float32)
    address, total = intp(given.ctypes.data), np.zeros(rows, np.float32)
    for _ in range(2):
        total += _sums_of(rows, address)
    return total


def test_what_is_freed_too_early_is_noticed():
    """The control: without it the next test might see nothing."""
    assert _held(64).tolist() == [2.0 * PAGE] * 64
    assert _freed(64).tolist() != [2.0 * PAGE] * 64


def reference(query, keys, values, pages, positions):
    """In float64, row by row."""
    out = np.empty_like(query)
    group = query.shape[1] // keys.shape[1]
    for row, position in enumerate(positions):
        for head in range(query.shape[1]):
            held = np.concatenate([keys[page, head // group].T for page in pages])[: position + 1]
            content = np.concatenate([values[page, head // group] for page in pages])[: position + 1]
            weights = np.exp(held.astype(np.float64) @ query[row, head])
            out[row, head] = weights / weights.sum() @ content
    return out


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (16, 4, 128)])
def test_attention_of_a_large_model_is_that_of_its_formula(rows, heads, kv_heads, dim):
    chance, context = np.random.default_rng(rows), 300
    count = -(-(context + rows) // PAGE)
    keys, values, query = (
        chance.standard_normal(shape).astype(np.float32)
        for shape in ((count, kv_heads, dim, PAGE), (count, kv_heads, PAGE, dim), (rows, heads, dim))
    )
    query /= dim**0.5
    positions, pages = context + np.arange(rows), np.arange(count)
    out = np.empty_like(query)
    owners, above = np.zeros(rows, np.int64), np.full(rows, -1)
    attend(query, keys, values, pages[None], owners, positions, positions, above, 0, out)
    np.testing.assert_allclose(out, reference(query, keys, values, pages, positions), atol=1e-5)
