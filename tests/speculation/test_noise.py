"""Keyed noise: the lazy winner against the plain one, its law, and what keys depend on."""

import pytest
import torch
from scipy import stats

from cluster.speculation.noise import DraftField, GumbelField, Noise, Purpose, derive_key
from cluster.speculation.proposal import truncate
from tests.speculation.helpers import ALPHA, p_value

PINNED_KEY = 16966369010856352576
PINNED_WORDS = [3014538827, 1692026473, 3544626192, 4277509627, 2617821361, 3520087268]


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


SMALL = torch.tensor([0.5, 0.3, 0.2])
# More tokens than the winner gives their noise to without need.
PEAKED = torch.tensor([0.55, 0.2, 0.1, 0.05] + [0.1 / 20] * 20)


@pytest.mark.parametrize("row", [SMALL, PEAKED], ids=["three tokens", "24 tokens"])
def test_winners_over_positions_follow_the_row_and_faults_are_caught(row):
    field = GumbelField(9)
    draws = [field.winner(position, row) for position in range(3000)]
    assert p_value(draws, row) > ALPHA
    flatter = row**0.6 / (row**0.6).sum()
    assert p_value(draws, flatter) < ALPHA
    # Noise that does not move with the position.
    assert p_value([field.winner(0, row)] * 3000, row) < ALPHA


def test_winners_over_seeds_follow_the_row():
    assert p_value([Noise(seed, 0).field.winner(3, SMALL) for seed in range(2000)], SMALL) > ALPHA


@pytest.mark.parametrize("distance", [1, 2, 2**32], ids=["next", "after next", "high word"])
def test_winners_of_two_positions_are_independent(distance):
    field = GumbelField(derive_key(77, Purpose.GUMBEL))
    joint = torch.outer(SMALL, SMALL).flatten()
    # Disjoint pairs, so that the pairs are independent of one another.
    firsts = [k + k // distance * distance for k in range(1000)]
    left = [field.winner(first, SMALL) for first in firsts]
    right = [field.winner(first + distance, SMALL) for first in firsts]
    assert p_value([3 * a + b for a, b in zip(left, right, strict=True)], joint) > ALPHA
    assert p_value([3 * a + a for a in left], joint) < ALPHA


def test_ties_go_to_the_lowest_id(monkeypatch):
    monkeypatch.setattr(GumbelField, "words", lambda self, position, vocab, device: torch.full((vocab,), 9))
    monkeypatch.setattr(GumbelField, "_words_of", lambda self, tokens, position: torch.full_like(tokens, 9))
    assert GumbelField(1).winner(0, torch.full((1000,), 1e-3)) == 0
    assert GumbelField(1).winner(0, torch.tensor([0.0, 0.2, 0.4, 0.4])) == 2


def test_gumbel_noise_is_the_double_logarithm_of_its_words():
    field = GumbelField(7)
    uniform = (field.words(3, 4096).double() + 0.5) / 2**32
    torch.testing.assert_close(field.gumbel(3, 4096), -(-uniform.log()).log(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_a_drafter_with_the_derived_key_has_the_verifiers_noise_and_not_the_seed(seed):
    key = derive_key(seed, Purpose.GUMBEL)
    assert torch.equal(GumbelField(key).gumbel(17, 100), Noise(seed, 4).gumbel(17, 100))
    assert key != seed
    assert 0 <= key < 2**64


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


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
def test_no_word_gives_an_end_of_the_interval(monkeypatch, word):
    def constant(counter, key):
        return torch.full((counter[0].shape[0], 4), word)

    monkeypatch.setattr("cluster.speculation.noise.philox", constant)
    monkeypatch.setattr("cluster.speculation.noise.philox_words", lambda counter, key: (word,) * 4)
    assert 0.0 < Noise(1, 2).uniform(Purpose.ACCEPT, 0) < 1.0
    assert bool(Noise(1, 2).gumbel(0, 5).isfinite().all())


def test_uniforms_are_not_made_of_the_words_behind_gumbel_noise():
    noise = Noise(3, 50)
    words = set(noise.field.words(50, 4000).tolist())
    # Even under the same key; by chance, a pair meets once in 20,000 seeds.
    assert not words & {int(noise.uniform(Purpose.GUMBEL, i) * 2**32) for i in range(50)}


def test_a_drafters_noise_is_new_in_every_round_and_no_noise_of_the_verifiers():
    noise = Noise(seed=3, base=8)
    field = DraftField(derive_key(3, Purpose.DRAFT), base=8)
    assert [field.uniform(k) for k in range(5)] == [noise.uniform(Purpose.DRAFT, k) for k in range(5)]
    # The same absolute positions, drafted again one round later.
    again = DraftField(field.key, base=9)
    assert not {field.uniform(k) for k in range(50)} & {again.uniform(k) for k in range(50)}
    others = [
        noise.uniform(p, k) for p in (Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.BONUS) for k in range(50)
    ]
    assert not {field.uniform(k) for k in range(50)} & set(others)


def test_a_drafters_draws_follow_the_row_that_is_sent():
    row = truncate(torch.tensor([0.4, 0.05, 0.3, 0.2, 0.05]), size=3)
    law = torch.zeros(5, dtype=torch.float64)
    law[list(row.ids)] = torch.tensor(row.probs, dtype=torch.float64)
    draws = [DraftField(7, base).draw(index, row) for base in range(1500) for index in range(2)]
    assert p_value(draws, law) > ALPHA
    flatter = law**0.7 / (law**0.7).sum()
    assert p_value(draws, flatter) < ALPHA
