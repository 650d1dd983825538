"""Keys and values of all sequences, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cluster.kernels.attention import PAGE
from cluster.kernels.tile import LANES
from verifier_service.cache.fused import FusedRows, Fuses
from verifier_service.cache.pages import Pages
from verifier_service.cache.prefixes import PageNames


def pages_of(tokens: int) -> int:
    """How many pages so many tokens take."""
    return -(-tokens // PAGE)


@dataclass(frozen=True, slots=True)
class Cleared:
    """Pages that hold zeros from now on."""

    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows that lie elsewhere from now on: of each its page and its place there, before and after. All are
    read before any is written."""

    pages: tuple[int, ...]
    places: tuple[int, ...]
    to_pages: tuple[int, ...]
    to_places: tuple[int, ...]


# What is done to keys and values outside of forwards.
Change = Cleared | Moved


class KVPool:
    """Room for `tokens` tokens of every layer. dim: of a head, the model's filled up to a multiple of LANES;
    shared: whether full pages get names, by which other sequences find them.

    keys: [layers, pages, kv_heads, dim, PAGE]; values: [layers, pages, kv_heads, PAGE, dim]. Free pages
    hold zeros: what lies beyond a sequence's tokens still enters products. fused: what drafters read of the
    tokens, None where they read nothing; kept, shared and lost with keys and values.
    changes: where other processes hold a share of each key and value, what they have to repeat, else None.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        dim: int,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        fuser: Fuses | None = None,
        shared: bool = True,
    ) -> None:
        self.shared = shared
        self.changes: list[Change] | None = None
        self.pages = Pages(pages_of(tokens))
        self.dim = -(-dim // LANES) * LANES
        self.keys = _zeros((layers, self.pages.count, kv_heads, self.dim, PAGE), dtype, device)
        self.values = _zeros((layers, self.pages.count, kv_heads, PAGE, self.dim), dtype, device)
        self.fused = FusedRows(self.pages.count, fuser, device) if fuser is not None else None

    def open(self) -> SequenceCache:
        return SequenceCache(self)

    def take(self, count: int) -> list[int]:
        """`count` pages that hold zeros. Raises OutOfPagesError."""
        taken, used = self.pages.take(count)
        self._clear(used)
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """One sequence's pages, in their order."""
        self._clear(self.pages.drop(pages))

    def _clear(self, pages: list[int]) -> None:
        if pages:
            self.apply(Cleared(tuple(pages)))

    def apply(self, change: Change) -> None:
        """Makes a change, and takes note of it for those who have to repeat it."""
        match change:
            case Cleared(pages):
                self.keys[:, pages] = 0
                self.values[:, pages] = 0
            case Moved(pages, places, to_pages, to_places):
                self.keys[:, to_pages, :, :, to_places] = self.keys[:, pages, :, :, places]
                self.values[:, to_pages, :, to_places] = self.values[:, pages, :, places]
                if self.fused is not None:
                    self.fused.move(pages, places, to_pages, to_places)
        if self.changes is not None:
            self.changes.append(change)


class SequenceCache:
    """The pages of one sequence. length: how many tokens are valid; rolling back is setting it to less, but
    not to less than `fixed`: pages with a name are others' to read, and are not written again.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.length = 0
        self._named = 0

    @property
    def fixed(self) -> int:
        """Tokens in pages that have a name."""
        return self._named * PAGE

    @property
    def reach(self) -> int:
        """For how many tokens there could be room."""
        return (len(self.pages) + self.pool.pages.free) * PAGE

    def reserve(self, tokens: int) -> None:
        """Takes what pages the first `tokens` tokens lack. Raises OutOfPagesError, and takes none then."""
        missing = pages_of(tokens) - len(self.pages)
        if missing > 0:
            self.pages += self.pool.take(missing)

    def fit(self, tokens: int) -> None:
        """Holds the pages of the first `tokens` tokens, no fewer and no more. Raises OutOfPagesError."""
        keep = pages_of(tokens)
        if keep < len(self.pages):
            self.pool.give_back(self.pages[keep:])
            del self.pages[keep:]
        else:
            self.reserve(tokens)

    def adopt(self, names: PageNames, tokens: Sequence[int], most: int) -> None:
        """Goes on with pages that already hold the next of `tokens`, of the first `most` in all."""
        if self.length % PAGE or len(self.pages) * PAGE != self.length:
            return
        while self.length + PAGE <= most:
            page = self.pool.pages.find(names.of(tokens, len(self.pages)))
            if page is None:
                break
            self.pool.pages.share(page)
            self.pages.append(page)
            self.length += PAGE
            self._named = len(self.pages)

    def name(self, names: PageNames, tokens: Sequence[int]) -> None:
        """Others may have the full pages, if the pool shares; `tokens` begins with those that they hold."""
        if not self.pool.shared:
            return
        for k in range(self._named, self.length // PAGE):
            self.pool.pages.name(self.pages[k], names.of(tokens, k))
            self._named = k + 1

    def gather(self, start: int, slots: Sequence[int]) -> None:
        """What these slots hold, ascending and none before `start`, goes to slots start.. : the accepted path
        of a tree, whose other rows are left behind."""
        moves = [(slot, start + k) for k, slot in enumerate(slots) if slot != start + k]
        if moves:
            before, after = zip(*moves, strict=True)
            self.pool.apply(Moved(*self._located(before), *self._located(after)))

    def _located(self, slots: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pages and places in them."""
        return tuple(self.pages[slot // PAGE] for slot in slots), tuple(slot % PAGE for slot in slots)

    def fused(self, start: int, end: int) -> Tensor:
        """What drafters read of tokens start..end - 1, which are computed: [n, width], the caller's own."""
        assert self.pool.fused is not None
        at = torch.arange(start, end)
        return self.pool.fused.of(torch.tensor(self.pages)[at // PAGE], at % PAGE)

    def forget(self) -> None:
        """Nobody is to find these pages any more."""
        self.pool.pages.forget(self.pages)

    def release(self) -> None:
        """Gives all pages back."""
        self.pool.give_back(self.pages)
        self.pages, self.length, self._named = [], 0, 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu" and dtype == torch.float32:
        # Unlike torch's, numpy's zeros take no memory before they are written to.
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)
