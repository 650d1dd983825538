from __future__ import annotations

import pytest
import torch

from cluster.speculation.philox import _on_device, philox, philox_words

# Random123's known answers for philox4x32-10: counter, key, output.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


def key_of(text):
    low, high = words(text)
    return low | high << 32


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter, key, output):
    tensors = tuple(torch.tensor([word]) for word in words(counter))
    assert philox(tensors, key_of(key)).tolist() == [words(output)]
    assert list(philox_words(tuple(words(counter)), key_of(key))) == words(output)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
@pytest.mark.parametrize("tensor_at", range(4))
def test_a_plain_int_counts_as_the_tensor_of_it(counter, key, output, tensor_at):
    mixed = tuple(torch.tensor([w]) if i == tensor_at else w for i, w in enumerate(words(counter)))
    assert philox(mixed, key_of(key)).tolist() == [words(output)]


def test_counters_are_independent_of_their_neighbours():
    counters = torch.tensor([0, 1, 7, 0xFFFFFFFF])
    together = philox((counters, 3, 2, 1), 42)
    assert together.shape == (4, 4)
    for index, counter in enumerate(counters):
        assert torch.equal(philox((counter[None], 3, 2, 1), 42)[0], together[index])


@pytest.mark.parametrize("word", range(4))
def test_every_counter_word_and_both_halves_of_the_key_matter(word):
    base = philox((torch.tensor([5]), 5, 5, 5), 5)
    counter = [torch.tensor([5]), 5, 5, 5]
    counter[word] = counter[word] + 1
    assert not torch.equal(philox(tuple(counter), 5), base)
    assert not torch.equal(philox((torch.tensor([5]), 5, 5, 5), 6), base)
    assert not torch.equal(philox((torch.tensor([5]), 5, 5, 5), 5 + (1 << 32)), base)


def test_words_fit_in_32_bits():
    output = philox((torch.arange(10_000), 1, 2, 3), 0xDEADBEEF_CAFEBABE)
    assert int(output.min()) >= 0
    assert int(output.max()) < 2**32


def test_what_a_device_computes_is_what_the_cpu_does():
    """The way of tensors on a device, taken here with tensors of the CPU; n is beyond one chunk."""
    quads = torch.arange(20_000)
    for high in (0, 0xFFFFFFFF):
        counter = (quads, 0x89ABCDEF, high, 1)
        assert torch.equal(_on_device(counter, 2**64 - 12345), philox(counter, 2**64 - 12345))
    columns = (quads, quads * 3, quads * 7 % 2**32, torch.tensor([5]).expand(20_000))
    assert torch.equal(_on_device(columns, 77), philox((*columns[:3], torch.tensor([5])), 77))
    assert philox_words((19_999, 0x89ABCDEF, 0, 1), 5) == tuple(
        philox((quads, 0x89ABCDEF, 0, 1), 5)[-1].tolist()
    )
