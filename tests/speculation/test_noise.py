"""Keyed noise: published vectors, the lazy winner against the plain one, and what keys depend on."""

import pytest
import torch
from scipy import stats

from cluster.speculation.noise import GumbelField, Noise, Purpose, derive_key
from cluster.speculation.philox import philox

FULL = 0xFFFFFFFF

# Random123's known answers for philox4x32-10: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

PINNED_KEY = 16966369010856352576
PINNED_WORDS = [3014538827, 1692026473, 3544626192, 4277509627, 2617821361, 3520087268]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_philox_gives_the_published_words(counter, key, output):
    first, *rest = counter
    words = philox((torch.tensor([first]), *rest), key[0] | key[1] << 32)
    assert tuple(words[0].tolist()) == output


def rows():
    generator = torch.Generator().manual_seed(3)
    for vocab in (1, 2, 3, 17, 500, 4099):
        for sharpness in (0.1, 1.0, 4.0, 12.0):
            row = torch.softmax(torch.randn(vocab, generator=generator) * sharpness, -1)
            yield row
            yield row.double()
            kept = torch.where(row >= row.max() * 0.2, row, 0.0)
            yield kept / kept.sum()
    yield torch.nn.functional.one_hot(torch.tensor(7), 20).float()


@pytest.mark.parametrize("position", [0, 1, 4095, 2**33])
def test_the_winner_is_the_argmax_over_all_noise(position):
    field = GumbelField(derive_key(42, Purpose.GUMBEL))
    for row in rows():
        score = row.double().log() + field.gumbel(position, row.shape[0])
        assert field.winner(position, row) == int(score.argmax())


def goodness_of_fit(draws, probs):
    counts = torch.bincount(torch.tensor(draws), minlength=len(probs))
    return stats.chisquare(counts.numpy(), (probs * len(draws)).numpy()).pvalue


def test_winners_over_positions_follow_the_row_and_a_wrong_row_is_caught():
    probs = torch.tensor([0.35, 0.3, 0.2, 0.1, 0.05], dtype=torch.float64)
    field = GumbelField(9)
    draws = [field.winner(position, probs) for position in range(20_000)]
    assert goodness_of_fit(draws, probs) > 1e-4
    wrong = probs**1.1 / (probs**1.1).sum()
    assert goodness_of_fit(draws, wrong) < 1e-4


def test_gumbel_noise_has_its_distribution():
    sample = GumbelField(1).gumbel(5, 20_000).numpy()
    assert stats.kstest(sample, "gumbel_r").pvalue > 1e-3
    assert stats.kstest(sample * 1.05, "gumbel_r").pvalue < 1e-3


def test_noise_depends_on_seed_and_position_and_not_on_the_round():
    here = Noise(seed=1, base=10).gumbel(12, 64)
    assert torch.equal(here, Noise(seed=1, base=11).gumbel(12, 64))
    assert not torch.equal(here, Noise(seed=2, base=10).gumbel(12, 64))
    assert not torch.equal(here, Noise(seed=1, base=10).gumbel(13, 64))
    # A row's noise does not depend on how long the row is.
    assert torch.equal(here[:30], Noise(seed=1, base=10).gumbel(12, 30))


def test_the_noise_of_a_seed_is_pinned():
    """An answer's seed must give the same answer after an upgrade."""
    words = Noise(seed=7, base=0).field.words(3, 6).tolist()
    assert derive_key(7, Purpose.GUMBEL) == PINNED_KEY
    assert words == PINNED_WORDS


def test_no_two_purposes_share_a_key():
    assert len({derive_key(5, purpose) for purpose in Purpose}) == len(Purpose)


def test_uniforms_lie_inside_the_open_interval_and_are_keyed():
    noise = Noise(seed=3, base=8)
    values = [noise.uniform(Purpose.ACCEPT, index) for index in range(500)]
    assert all(0.0 < value < 1.0 for value in values)
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert noise.uniform(Purpose.ACCEPT, 1) == Noise(seed=3, base=8).uniform(Purpose.ACCEPT, 1)
    others = {
        noise.uniform(Purpose.RESIDUAL, 1),
        noise.uniform(Purpose.ACCEPT, 2),
        Noise(seed=3, base=9).uniform(Purpose.ACCEPT, 1),
        Noise(seed=4, base=8).uniform(Purpose.ACCEPT, 1),
    }
    assert values[1] not in others
    assert len(others) == 4
