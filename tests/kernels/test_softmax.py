"""Softmax against torch's, what is ruled out, and greedy rows."""

import numpy as np
import pytest
import torch

from cluster.kernels.softmax import distributions


def addresses(x):
    return np.array([row.ctypes.data for row in x], np.int64)


def result(x, temperature=1.0):
    y = np.empty_like(x)
    distributions(addresses(x), np.full(len(x), temperature, np.float32), y)
    return y


@pytest.mark.parametrize("temperature", [1e-30, 0.3, 1.0, 5.0, 1e30])
@pytest.mark.parametrize("vocab", [1, 2, 17, 49_152])
def test_rows_are_torchs(vocab, temperature):
    x = np.random.default_rng(vocab).standard_normal((3, vocab)).astype(np.float32) * 10
    expected = torch.softmax(torch.from_numpy(x).double() / temperature, -1).numpy()
    got = result(x, temperature)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-37)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=2e-6)
    assert np.array_equal(result(x[1:2], temperature), got[1:2])


def test_what_is_ruled_out_has_no_probability():
    x = np.array([[1.0, -np.inf, 2.0, -1e30]], np.float32)
    assert (result(x) > 0).tolist() == [[True, False, True, False]]


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_row_that_is_no_distribution_shows(fault):
    x = np.zeros((2, 40), np.float32)
    x[0, 33] = fault
    for temperature in (0.0, 1.0):
        got = result(x, temperature)
        assert np.isnan(got[0]).any()
        assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("vocab", [1, 17, 1024, 1025, 49_152])
def test_the_first_of_the_largest_has_all_of_a_greedy_row(vocab):
    x = np.random.default_rng(vocab).standard_normal((4, vocab)).astype(np.float32)
    x[1, [vocab // 2, vocab - 1]] = 9
    x[2] = -np.inf
    x[2, vocab // 3 :] = 0.0
    x[2, vocab // 3] = -0.0
    x[3] = -np.inf
    x[3, -1] = -1e30
    got = result(x, 0.0)
    assert got.argmax(1).tolist() == x.argmax(1).tolist()
    assert (got.max(1) == 1).all()
    assert (got.sum(1) == 1).all()
