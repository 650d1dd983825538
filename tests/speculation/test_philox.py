"""Philox4x32-10 against its published answers, on arrays and on plain integers."""

import numpy as np
import pytest

from cluster.speculation.philox import philox, philox_words

# Random123's known answers for philox4x32-10: counter, key, output.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter, key, output):
    low, high = words(key)
    arrays = tuple(np.array([word], dtype=np.uint64) for word in words(counter))
    assert philox(arrays, (low, high)).tolist() == [words(output)]
    assert list(philox_words(tuple(words(counter)), low | high << 32)) == words(output)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
@pytest.mark.parametrize("array_at", range(6))
def test_a_plain_integer_counts_as_the_array_of_it(counter, key, output, array_at):
    mixed = [
        np.array([w], dtype=np.uint64) if i == array_at else w
        for i, w in enumerate(words(counter) + words(key))
    ]
    assert philox(tuple(mixed[:4]), tuple(mixed[4:])).tolist() == [words(output)]


def test_counters_and_keys_are_independent_of_their_neighbours():
    counters = np.array([0, 1, 7, 0xFFFFFFFF], dtype=np.uint64)
    keys = np.array([[42], [43]], dtype=np.uint64)
    together = philox((counters, 3, 2, 1), (keys, 9))
    assert together.shape == (2, 4, 4)
    for row, key in enumerate(keys[:, 0]):
        for column, counter in enumerate(counters):
            alone = philox_words((int(counter), 3, 2, 1), int(key) | 9 << 32)
            assert together[row, column].tolist() == list(alone)


@pytest.mark.parametrize("word", range(6))
def test_every_word_of_counter_and_key_matters(word):
    plain = [np.array([5], dtype=np.uint64)] + [5] * 5
    other = list(plain)
    other[word] = other[word] + 1
    base, moved = (philox(tuple(words[:4]), tuple(words[4:])) for words in (plain, other))
    assert not np.array_equal(base, moved)


def test_words_fit_in_32_bits():
    output = philox((np.arange(10_000, dtype=np.uint64), 1, 2, 3), (0xCAFEBABE, 0xDEADBEEF))
    assert int(output.max()) < 2**32
