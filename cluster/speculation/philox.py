"""Philox4x32-10, a counter-based generator, on integers of torch, numpy or Python.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3.
Integer arithmetic alone, so CPU and GPU agree bit for bit.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


# Counters worked on at a time by the CPU, so that the words of all rounds stay in its cache.
_CHUNK = 16384

_Word = TypeVar("_Word")


def _rounds(counter: tuple[_Word, _Word, _Word, _Word], key: int) -> tuple[_Word, _Word, _Word, _Word]:
    """Words are ints, int64 tensors or uint64 arrays, of which the last two may be mixed with ints."""
    c0: Any
    c1: Any
    c2: Any
    c3: Any
    c0, c1, c2, c3 = counter
    k0, k1 = key & _MASK, (key >> 32) & _MASK
    for _ in range(_ROUNDS):
        # A product of two 32-bit words wraps in int64, but its 64 bits are the right ones.
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        top_low, top_high = low >> 32, high >> 32
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            # The shift of a signed integer fills up with its sign.
            top_low, top_high = top_low & _MASK, top_high & _MASK
        # In place where it can be: all four are new.
        top_high ^= c1
        top_high ^= k0
        top_low ^= c3
        top_low ^= k1
        low &= _MASK
        high &= _MASK
        c0, c1, c2, c3 = top_high, high, top_low, low
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def philox(counter: tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int], key: int) -> Tensor:
    """The four output words of each counter.

    counter: four words below 2**32, int64 tensors that broadcast to one shape [n] or plain ints
    (at least one is a tensor); key: 64 bits. Returns int64 [n, 4], each word in [0, 2**32).
    """
    tensors = [word for word in counter if isinstance(word, Tensor)]
    # Asking torch takes as long as two rounds of the generator.
    shape = tensors[0].shape if len(tensors) == 1 else torch.broadcast_shapes(*[t.shape for t in tensors])
    c0, c1, c2, c3 = (word.expand(shape) if isinstance(word, Tensor) else word for word in counter)
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return _on_cpu((c0, c1, c2, c3), shape[0], key)
    return _on_device((c0, c1, c2, c3), key)


def _on_device(counter: tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int], key: int) -> Tensor:
    words = torch.broadcast_tensors(*[torch.as_tensor(word) for word in _rounds(counter, key)])
    return torch.stack(words, dim=-1)


def _on_cpu(
    counter: tuple[Tensor | int, Tensor | int, Tensor | int, Tensor | int], n: int, key: int
) -> Tensor:
    """The same on numpy's unsigned integers: a third of the time, since torch's 64-bit shifts and products
    are not vectorised there."""
    arrays = [word.numpy().astype(np.uint64) if isinstance(word, Tensor) else word for word in counter]
    out = np.empty((n, 4), dtype=np.int64)
    for start in range(0, n, _CHUNK):
        part = slice(start, start + _CHUNK)
        c0, c1, c2, c3 = (word if isinstance(word, int) else word[part] for word in arrays)
        for k, word in enumerate(_rounds((c0, c1, c2, c3), key)):
            out[part, k] = word
    return torch.from_numpy(out)


def philox_words(counter: tuple[int, int, int, int], key: int) -> tuple[int, int, int, int]:
    """The same four words of one counter, without a tensor: a hundredth of the time for a single draw."""
    return _rounds(counter, key)
