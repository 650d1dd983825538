"""Keyed noise: the randomness of a request as a function of its seed and of positions.

Everything is drawn from integers of a counter-based generator, through double-precision additions,
multiplications and divisions only. These are correctly rounded everywhere and numpy does not fuse them;
a device computes integers alone. So both services and both kinds of device get the same numbers, bit for bit.
Gumbel noise serves `none` and `coupled`; uniforms serve the laws that accept, reject and draw again.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cluster.speculation.philox import philox, philox_words
from cluster.speculation.proposal import SparseRow

_LN2 = math.log(2.0)
_SQRT2 = math.sqrt(2.0)
# log m = 2 atanh(s), s = (m - 1) / (m + 1); |s| < 0.172 for m in [sqrt(1/2), sqrt(2)), so the
# series to s^21 is exact to the last bits of a double.
_ATANH = [2.0 / (2 * k + 1) for k in range(11)]
# A row with no more than this part of its vocabulary left has noise drawn for single tokens.
_SPARSE = 16

_Doubles = NDArray[np.float64]


class Purpose(StrEnum):
    """What a key is for; two purposes never share noise."""

    GUMBEL = "gumbel"
    DRAFT = "draft"
    ACCEPT = "accept"
    RESIDUAL = "residual"
    BONUS = "bonus"


def derive_key(seed: int, purpose: Purpose) -> int:
    """A 64-bit key from which the seed cannot be computed."""
    digest = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8, person=b"truedraft.noise").digest()
    return int.from_bytes(digest, "little")


def _log(x: _Doubles) -> _Doubles:
    """Natural logarithm of positive doubles by exactly rounded operations alone."""
    bits = x.view(np.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    above = mantissa >= _SQRT2
    mantissa = np.where(above, mantissa * 0.5, mantissa)
    exponent = exponent + above
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, _ATANH[-1])
    for coefficient in reversed(_ATANH[:-1]):
        series = series * square
        series = series + coefficient
    return series * s + exponent * _LN2


def _gumbel(words: Tensor) -> _Doubles:
    """Words in [0, 2**32), through doubles in the open interval (0, 1), to Gumbel noise."""
    uniform = (words.cpu().numpy() + 0.5) * 2.0**-32
    return -_log(-_log(uniform))


def _scores(probs: Tensor, words: Tensor) -> _Doubles:
    """log p + G of a few tokens."""
    return _log(probs.cpu().double().numpy()) + _gumbel(words)


@dataclass(frozen=True, slots=True)
class GumbelField:
    """Gumbel noise G[position, token] of one key: all that a drafter under `coupled` gets to know."""

    key: int

    def words(self, position: int, vocab: int, device: torch.device | str = "cpu") -> Tensor:
        """The integers behind the noise of one position: int64 [vocab] in [0, 2**32)."""
        quads = torch.arange((vocab + 3) // 4, device=device)
        counter = (quads, position & 0xFFFFFFFF, position >> 32, 0)
        return philox(counter, self.key).flatten()[:vocab]

    def gumbel(self, position: int, vocab: int, device: torch.device | str = "cpu") -> Tensor:
        """G[position, :]: standard Gumbel noise, float64 [vocab]."""
        return torch.from_numpy(_gumbel(self.words(position, vocab))).to(device)

    def winner(self, position: int, probs: Tensor) -> int:
        """argmax over tokens of log p + G[position], ties to the lowest id; a draw from p.

        probs: [V], non-negative, not all zero, in float32 or float64. Gumbel-max: Gumbel (1954);
        shared with a drafter: Daliri, Musco, Suresh (arXiv 2408.07978), section 3.

        Only tokens that can win are given their noise. With s the score of the most probable token, v can
        beat it only if U_v >= exp(-p_v e^-s), hence only if U_v >= 1 - p_v e^-s, which is a comparison of
        integers. A row that was cut to few tokens has only their integers drawn.
        """
        vocab = probs.shape[0]
        if int(torch.count_nonzero(probs)) * _SPARSE <= vocab:
            support = probs.nonzero()[:, 0]
            if support.shape[0] == 1:
                return int(support[0])
            words = self._words_of(support, position)
        else:
            words = self.words(position, vocab, probs.device)
            # Many times faster than argmax.
            leader = (probs == probs.max()).nonzero()[:1, 0]
            bound = float(_scores(probs[leader], words[leader])[0])
            # The slack covers rounding to single precision; what it lets through merely costs its noise.
            reach = probs.float() * (math.exp(-bound) * 2.0**32 * (1.0 + 1e-6))
            support = ((2**32 - words).float() - 0.5 <= reach).nonzero()[:, 0]
            words = words[support]
        # The first of equal scores, and ids ascend.
        return int(support[int(np.argmax(_scores(probs[support], words)))])

    def _words_of(self, tokens: Tensor, position: int) -> Tensor:
        counter = (tokens // 4, position & 0xFFFFFFFF, position >> 32, 0)
        return philox(counter, self.key).gather(1, (tokens % 4)[:, None])[:, 0]


def _uniform(key: int, base: int, index: int) -> float:
    """A double with 52 random bits in the open interval (0, 1). The last word of the counter keeps it
    apart from the words behind Gumbel noise, should keys ever meet."""
    first, second, _, _ = philox_words((index, base & 0xFFFFFFFF, base >> 32, 1), key)
    return ((first << 20 | second >> 12) + 0.5) * 2.0**-52


@dataclass(frozen=True, slots=True)
class DraftField:
    """The noise of one round's draft: all that a drafter under `rejection` or `block` gets to know.

    key: `derive_key(seed, Purpose.DRAFT)`; base: committed length that the block continues. Keyed by the
    absolute position alone, a position drafted again in the next round would reuse its noise, which biases
    the block law.
    """

    key: int
    base: int

    def uniform(self, index: int) -> float:
        """One double in the open interval (0, 1) for the index-th token of the block."""
        return _uniform(self.key, self.base, index)

    def draw(self, index: int, row: SparseRow) -> int:
        """The index-th token of the block, drawn from the row that is sent with it."""
        return row.draw(self.uniform(index))


@dataclass(frozen=True, slots=True)
class Noise:
    """A request's noise in the round that begins at committed length `base`.

    seed: the request's seed, 64 bits, known to the verifier alone; base: absolute position of the
    round's first undecided token.
    """

    seed: int
    base: int

    @property
    def field(self) -> GumbelField:
        return GumbelField(derive_key(self.seed, Purpose.GUMBEL))

    def gumbel(self, position: int, vocab: int) -> Tensor:
        """Gumbel noise of an absolute position: float64 [vocab]; depends on (seed, position) alone."""
        return self.field.gumbel(position, vocab)

    def uniform(self, purpose: Purpose, index: int) -> float:
        """One double in the open interval (0, 1), keyed by (seed, base, purpose, index).

        A retried call draws the same, and DRAFT is what `DraftField` gives the drafter.
        """
        return _uniform(derive_key(self.seed, purpose), self.base, index)
