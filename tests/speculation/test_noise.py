"""Keyed noise: what keys depend on, and the uniforms of verifier and drafter."""

import pytest
import torch
from scipy import stats

from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.philox import philox
from cluster.speculation.proposal import truncate
from cluster.speculation.race import GumbelField
from tests.speculation.helpers import ALPHA, p_value


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_a_drafter_with_the_derived_key_has_the_verifiers_noise_and_not_the_seed(seed):
    key = derive_key(seed, Purpose.GUMBEL)
    assert torch.equal(GumbelField(key).gumbel(17, 100), Noise(seed, 4).gumbel(17, 100))
    assert key != seed
    assert 0 <= key < 2**64


def test_noise_depends_on_seed_and_position_and_not_on_the_round():
    here = Noise(seed=1, base=10).gumbel(12, 64)
    assert torch.equal(here, Noise(seed=1, base=11).gumbel(12, 64))
    assert not torch.equal(here, Noise(seed=2, base=10).gumbel(12, 64))
    assert not torch.equal(here, Noise(seed=1, base=10).gumbel(13, 64))
    # A row's noise does not depend on how long the row is.
    assert torch.equal(here[:30], Noise(seed=1, base=10).gumbel(12, 30))


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


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
def test_no_word_gives_an_end_of_the_interval(monkeypatch, word):
    monkeypatch.setattr("cluster.speculation.noise.philox_words", lambda counter, key: (word,) * 4)
    assert 0.0 < Noise(1, 2).uniform(Purpose.ACCEPT, 0) < 1.0


def test_uniforms_are_not_made_of_the_words_behind_gumbel_noise(monkeypatch):
    drawn = []

    def recorded(counter, key):
        words = philox(counter, key)
        drawn.extend(words.reshape(-1).tolist())
        return words

    monkeypatch.setattr("cluster.speculation.race.philox", recorded)
    noise = Noise(3, 50)
    noise.gumbel(50, 2000)
    assert len(drawn) > 2000
    # Even under the same key; by chance, a pair meets once in 20,000 seeds.
    assert not set(drawn) & {int(noise.uniform(Purpose.GUMBEL, i) * 2**32) for i in range(50)}
