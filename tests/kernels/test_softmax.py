"""Softmax against torch's, and what is ruled out."""

import numpy as np
import pytest
import torch

from cluster.kernels.softmax import softmax


def result(x, temperature=1.0):
    y = np.empty_like(x)
    softmax(x, np.float32(temperature), y)
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
    got = result(x)
    assert np.isnan(got[0]).any()
    assert np.isfinite(got[1]).all()
