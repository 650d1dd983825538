"""Keys and values of all sequences, in pages."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cluster.kernels.attention import PAGE
from cluster.kernels.tile import LANES


class OutOfPagesError(RuntimeError):
    """The pool holds no further token."""


class KVPool:
    """Room for `tokens` tokens of every layer. dim: of a head, the model's filled up to a multiple of LANES.

    keys: [layers, pages, kv_heads, dim, PAGE]; values: [layers, pages, kv_heads, PAGE, dim]. Free pages
    hold zeros: what lies beyond a sequence's tokens still enters products.
    """

    def __init__(
        self, layers: int, kv_heads: int, dim: int, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.pages = -(-tokens // PAGE)
        self.dim = -(-dim // LANES) * LANES
        self.keys = _zeros((layers, self.pages, kv_heads, self.dim, PAGE), dtype, device)
        self.values = _zeros((layers, self.pages, kv_heads, PAGE, self.dim), dtype, device)
        self._free = list(reversed(range(self.pages)))

    @property
    def free(self) -> int:
        """Pages that are free."""
        return len(self._free)

    def open(self) -> SequenceCache:
        return SequenceCache(self)

    def take(self, count: int) -> list[int]:
        """Numbers of `count` pages. Raises OutOfPagesError."""
        if count > len(self._free):
            total = self.pages * PAGE
            raise OutOfPagesError(f"a cache of {total} tokens has no room for {count * PAGE} more")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        self.keys[:, pages] = 0
        self.values[:, pages] = 0
        self._free.extend(pages)


class SequenceCache:
    """The pages of one sequence. length: how many tokens are valid; rolling back is setting it to less."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self.length = 0

    def reserve(self, tokens: int) -> None:
        """Takes what pages the first `tokens` tokens lack. Raises OutOfPagesError, and takes none then."""
        missing = -(-tokens // PAGE) - len(self.pages)
        if missing > 0:
            self.pages += self._pool.take(missing)

    def release(self) -> None:
        """Gives all pages back."""
        if self.pages:
            self._pool.give_back(self.pages)
        self.pages, self.length = [], 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu" and dtype == torch.float32:
        # Unlike torch's, numpy's zeros take no memory before they are written to.
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)
