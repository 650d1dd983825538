import pytest
import torch

from cluster.checks.goodness import LEAST_EXPECTED, REST, binned, fit, holm

# First token 7: pairs of 0.4, 0.2 and two rare ones; first token 8: one pair and a very rare one.
LAW = {
    7: torch.tensor([0.4, 0.2, 0.04, 0.02], dtype=torch.float64),
    8: torch.tensor([0.28, 0.0, 0.0, 0.0001], dtype=torch.float64),
}


def test_rare_pairs_are_pooled_with_their_first_token_then_with_the_rest():
    bins = binned(LAW, 100)
    assert bins == {
        (7, 0): pytest.approx(0.4),
        (7, 1): pytest.approx(0.2),
        (7, REST): pytest.approx(0.06),
        (8, 0): pytest.approx(0.28),
        REST: pytest.approx(0.06),
    }
    assert all(100 * p >= LEAST_EXPECTED for p in bins.values())


def test_a_rest_that_is_too_rare_takes_the_rarest_bin():
    bins = binned({7: torch.tensor([0.6, 0.3, 0.099], dtype=torch.float64)}, 100)
    assert bins == {(7, 0): pytest.approx(0.6), (7, 1): pytest.approx(0.3), REST: pytest.approx(0.1)}


def test_a_sample_in_the_laws_own_shares_fits_perfectly():
    pairs = [(7, 0)] * 40 + [(7, 1)] * 20 + [(7, 2)] * 4 + [(7, 3)] * 2 + [(8, 0)] * 28 + [(9, None)] * 6
    found = fit(pairs, LAW)
    assert (found.draws, found.bins) == (100, 5)
    assert found.chi2 == pytest.approx(0.0, abs=1e-9)
    assert found.p_value == pytest.approx(1.0)


def test_a_known_statistic():
    pairs = [(7, 0)] * 50 + [(7, 1)] * 10 + [(7, 2)] * 6 + [(8, 0)] * 28 + [(9, None)] * 6
    found = fit(pairs, LAW)
    assert found.chi2 == pytest.approx(10**2 / 40 + 10**2 / 20)
    # Of χ² with four degrees of freedom above 7.5, from its closed form: exp(-x/2) (1 + x/2).
    assert found.p_value == pytest.approx(2.718281828459045**-3.75 * 4.75)
    assert found.tv == pytest.approx(0.1)


def test_holm():
    # By hand: 4 × 0.005, 3 × 0.01, 2 × 0.03, then 0.04 raised to what came before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
