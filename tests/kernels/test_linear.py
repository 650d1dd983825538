"""Products by panels: right, and bit for bit the same for a row in any company."""

import numba
import numpy as np
import pytest
import torch

from cluster.kernels.elementwise import exponential, inverse_rms, norm
from cluster.kernels.linear import add_linear, integers_of, linear, pack_weight
from cluster.kernels.tile import PANEL

SIZES = [(1, 1), (64, 64), (65, 7), (200, 63), (130, 129), (48, 300)]


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(x, packed):
    y = np.full((len(x), packed.values.shape[0] * PANEL), np.nan, np.float32)
    linear(np.ascontiguousarray(x), packed, y)
    return y


@pytest.mark.parametrize(("out", "depth"), SIZES)
def test_products_are_those_of_double_precision(out, depth):
    weight, x = random(out, depth), random(13, depth, seed=1)
    y = product(x, pack_weight(torch.from_numpy(weight)))
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(y[:, :out], expected, atol=2e-6 * depth)
    assert not y[:, out:].any()


@pytest.mark.parametrize(("out", "depth"), SIZES)
def test_products_of_integers_are_those_of_the_rounded_weight(out, depth):
    weight, x = torch.from_numpy(random(out, depth)), random(13, depth, seed=1)
    integers, scales = integers_of(weight)
    assert integers.abs().max() == 127
    torch.testing.assert_close(integers * scales[:, None], weight, rtol=0, atol=float(scales.max()) / 2)
    y = product(x, pack_weight(weight, integers=True))
    expected = x.astype(np.float64) @ (integers.double() * scales.double()[:, None]).numpy().T
    np.testing.assert_allclose(y[:, :out], expected, atol=2e-6 * depth)
    assert not y[:, out:].any()


def test_rounding_again_changes_no_integer_and_zeros_stay():
    weight = torch.from_numpy(random(40, 70))
    weight[3] = 0
    integers, scales = integers_of(weight)
    again, _ = integers_of(integers * scales[:, None])
    assert torch.equal(integers, again)
    assert scales[3] == 0
    assert not product(random(2, 70), pack_weight(weight, integers=True))[:, 3].any()


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(("out", "depth"), SIZES)
def test_a_row_has_the_same_bits_among_any_number_of_rows_and_threads(out, depth, integers):
    packed, x = pack_weight(torch.from_numpy(random(out, depth)), integers), random(37, depth, seed=1)
    before = numba.get_num_threads()
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            alone = np.concatenate([product(row[None], packed) for row in x])
            for count in (2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 17, 24, 25, 37):
                assert np.array_equal(product(x[:count], packed), alone[:count])
                assert np.array_equal(product(x[-count:], packed), alone[-count:])
    finally:
        numba.set_num_threads(before)


def test_a_sum_goes_through_the_depth_in_order():
    """One chain of additions, so 1 is lost in 2^24 wherever it does not come first."""
    weight = torch.ones(1, 130)
    big = np.ones((1, 130), np.float32)
    big[0, 0] = 2.0**24
    assert product(big, pack_weight(weight))[0, 0] == 2.0**24
    assert product(big[:, ::-1], pack_weight(weight))[0, 0] == 2.0**24 + 128


@pytest.mark.parametrize("out", [1, 64, 100])
def test_an_added_product_is_summed_first(out):
    packed = pack_weight(torch.from_numpy(random(out, 90)))
    x, y = random(5, 90, seed=1), random(5, out, seed=2)
    expected = y + product(x, packed)[:, :out]
    add_linear(x, packed, y)
    assert np.array_equal(y, expected)


def test_norms_are_torchs():
    x, weight = random(9, 100), random(100, seed=1)
    y = np.empty_like(x)
    norm(x, weight, np.float32(1e-5), y)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(x), (100,), torch.from_numpy(weight), 1e-5)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
    assert inverse_rms(np.zeros(4, np.float32), np.float32(0)) == np.inf


def test_the_exponential_is_within_its_bound_and_never_overflows():
    x = np.linspace(-87, 88, 200_001).astype(np.float32)
    got = np.array([exponential(value) for value in x[::20]])
    np.testing.assert_allclose(got, np.exp(x[::20].astype(np.float64)), rtol=2e-7)
    assert exponential(np.float32(0)) == 1
    assert exponential(np.float32(1e9)) == exponential(np.float32(88))
    assert exponential(np.float32(-np.inf)) == exponential(np.float32(-87))
