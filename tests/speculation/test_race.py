"""The race: its winners against the plain argmax, its noise against the law it is meant to have."""

import numpy as np
import pytest
import torch
from scipy import stats

from cluster.speculation import race
from cluster.speculation.noise import Noise, Purpose, derive_key
from cluster.speculation.race import _GROUP, GumbelField, _Rows, winners
from tests.speculation.helpers import ALPHA, p_value

SMALL = torch.tensor([0.5, 0.3, 0.2])
# More tokens than a group.
PEAKED = torch.tensor([0.55, 0.2, 0.1, 0.05] + [0.1 / 20] * 20)

PINNED_KEY = 16966369010856352576
PINNED = [
    0.13643019067042167,
    3.8110553314498463,
    -0.052577326929859426,
    1.3254431325310467,
    0.5654060551327065,
]


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


def test_several_rows_have_the_winners_of_each_alone():
    generator = torch.Generator().manual_seed(8)
    probs = torch.softmax(torch.randn(40, 4099, generator=generator) * 5, -1)
    # Among them rows with one token left.
    probs[::7] = torch.nn.functional.one_hot(torch.arange(6) * 600, 4099).float()
    fields = [GumbelField(derive_key(index, Purpose.GUMBEL)) for index in range(40)]
    positions = [2**33 + 3 * index for index in range(40)]
    alone = [field.winner(p, row) for field, p, row in zip(fields, positions, probs, strict=True)]
    assert winners(fields, positions, list(probs)) == alone
    assert alone[::7] == [600 * index for index in range(6)]


def test_ties_go_to_the_lowest_id(monkeypatch):
    monkeypatch.setattr(_Rows, "heads", lambda self, groups: np.zeros((1, groups), dtype=np.uint64))
    monkeypatch.setattr(
        _Rows, "race", lambda self, row_of, groups, heads: np.full((groups.size, _GROUP), 0.5)
    )
    assert race._winners([GumbelField(1)], [0], [torch.full((1000,), 1e-3)]) == [0]
    assert GumbelField(1).winner(0, torch.tensor([0.0, 0.2, 0.4, 0.4])) == 2


def test_gumbel_noise_has_its_distribution():
    sample = GumbelField(1).gumbel(5, 20_000).numpy()
    assert stats.kstest(sample, "gumbel_r").pvalue > 1e-3
    assert stats.kstest(sample * 1.05, "gumbel_r").pvalue < 1e-3


def race_of_groups(seed=2, groups=20_000):
    """E of whole groups: [groups, size]."""
    noise = GumbelField(seed).gumbel(9, groups * _GROUP).numpy()
    return np.exp(-noise).reshape(groups, _GROUP)


def independent(left, right):
    """p-value of a chi-squared test on a table of 8 by 8 equally probable cells, for two columns of E."""
    cells = [np.minimum((8 * -np.expm1(-column)).astype(int), 7) for column in (left, right)]
    return stats.chisquare(np.bincount(8 * cells[0] + cells[1], minlength=64)).pvalue


def test_the_noise_within_a_group_is_that_of_independent_tokens():
    race = race_of_groups()
    assert stats.kstest(race.min(axis=1) * _GROUP, "expon").pvalue > 1e-3
    assert stats.chisquare(np.bincount(race.argmin(axis=1), minlength=_GROUP)).pvalue > 1e-3
    pairs = [(0, 1), (0, _GROUP - 1), (3, 4), (5, 12)]
    assert min(independent(race[:, i], race[:, j]) for i, j in pairs) > 1e-3 / len(pairs)
    # The gap to the second has a law of its own, whatever the least was.
    ordered = np.sort(race, axis=1)
    assert stats.kstest((ordered[:, 1] - ordered[:, 0]) * (_GROUP - 1), "expon").pvalue > 1e-3


def test_a_fault_within_groups_is_found():
    race = race_of_groups()
    least = race.min(axis=1, keepdims=True)
    # The others without the least that they start from, and a least that always runs in one place.
    forgetful = np.where(race == least, race, race - least)
    assert independent(forgetful[:, 0], forgetful[:, 1]) < 1e-3
    placed = np.where(race == least, race[:, :1], race)
    placed[:, :1] = least
    assert stats.chisquare(np.bincount(placed.argmin(axis=1), minlength=_GROUP)).pvalue < 1e-3


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1])
def test_no_word_gives_noise_that_is_not_finite(monkeypatch, word):
    def constant(counter, key):
        shape = np.broadcast_shapes(*(np.shape(part) for part in (*counter, *key)))
        return np.full((*shape, 4), word, dtype=np.uint64)

    monkeypatch.setattr("cluster.speculation.race.philox", constant)
    assert bool(Noise(1, 2).gumbel(0, 50).isfinite().all())


def test_the_noise_of_a_seed_is_pinned():
    """An answer's seed must give the same answer after an upgrade."""
    assert derive_key(7, Purpose.GUMBEL) == PINNED_KEY
    assert Noise(seed=7, base=0).gumbel(3, 40)[::8].tolist() == PINNED


def test_compiled_races_are_those_of_numpy():
    every = [row for row in rows() if row.dtype == torch.float32]
    for position in (0, 7, 2**33):
        for row in every:
            fields = [GumbelField(derive_key(seed, Purpose.GUMBEL)) for seed in range(20)]
            positions, same = [position + i for i in range(20)], [row] * 20
            assert race._compiled_winners(fields, positions, same) == race._winners(fields, positions, same)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 5, 16, 20])
def test_a_row_with_what_is_no_number_is_refused_wherever_it_stands(fault, place):
    row = torch.full((21,), 1 / 21)
    row[place] = fault
    for either in (row, row.double()):
        with pytest.raises(ValueError, match="positive, finite sum"):
            winners([GumbelField(1)], [0], [either])
