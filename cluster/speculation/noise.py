"""Keyed noise: the randomness of a request as a function of its seed and of positions.

Everything is drawn from integers of a counter-based generator. Gumbel noise (race.py) serves `none` and
`coupled`; uniforms serve the laws that accept, reject and draw again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from cluster.speculation.philox import philox_words
from cluster.speculation.proposal import SparseRow
from cluster.speculation.race import GumbelField


class Purpose(StrEnum):
    """What a key is for; two purposes never share noise."""

    GUMBEL = "gumbel"
    DRAFT = "draft"
    ACCEPT = "accept"
    RESIDUAL = "residual"
    BONUS = "bonus"
    AUDIT = "audit"


def derive_key(seed: int, purpose: Purpose) -> int:
    """A 64-bit key: the seed is found from it only by trying seeds, so few or guessable ones do not hide."""
    digest = hashlib.blake2b(f"{purpose}:{seed}".encode(), digest_size=8, person=b"truedraft.noise").digest()
    return int.from_bytes(digest, "little")


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of several answers to a request with `seed`; the first has the request's own."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{index}:{seed}".encode(), digest_size=8, person=b"truedraft.choice")
    return int.from_bytes(digest.digest(), "little")


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
