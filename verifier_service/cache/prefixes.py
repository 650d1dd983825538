"""Names of pages: what a page holds follows from all tokens up to its end, from the model, and from whose
tokens they are."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from cluster.kernels.attention import PAGE

_BYTES = 32


class PageNames:
    """The names of one sequence's full pages: a chain of digests.

    model: what keys and values follow from besides tokens, such as the hash of the weights; salt: sequences
    of another salt find nothing of this one's, however equal their tokens.
    """

    def __init__(self, model: str, salt: str) -> None:
        seed = hashlib.blake2b(model.encode(), digest_size=_BYTES, person=b"truedraft.pages")
        self._chain = [hashlib.blake2b(salt.encode(), digest_size=_BYTES, key=seed.digest()).digest()]

    def of(self, tokens: Sequence[int], page: int) -> bytes:
        """The name of the page-th page of a sequence that begins with `tokens`, which must fill it."""
        chain = self._chain
        for k in range(len(chain) - 1, page + 1):
            content = array("q", tokens[k * PAGE : (k + 1) * PAGE])
            chain.append(hashlib.blake2b(chain[k] + content.tobytes(), digest_size=_BYTES).digest())
        return chain[page + 1]
