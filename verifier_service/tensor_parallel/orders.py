"""What rank 0 has the others do: the same as itself."""

from __future__ import annotations

import copy
import itertools
import weakref
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from verifier_service.cache.kv_cache import Change, KVPool, SequenceCache
from verifier_service.layers.attention import Batch
from verifier_service.tensor_parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class NewPool:
    """A pool for so many tokens."""

    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """A forward. places: without pool and caches; changes: of the pool's pages since its last step; dropped:
    pools that are gone."""

    pool: int
    changes: tuple[Change, ...]
    dropped: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    wanted: Tensor
    places: Batch


class Leader:
    """Rank 0's side: numbers its pools, the first of which the others make by themselves."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._numbers = itertools.count()
        self._known: weakref.WeakKeyDictionary[KVPool, int] = weakref.WeakKeyDictionary()
        self._dropped: list[int] = []

    def made(self, pool: KVPool, tokens: int) -> None:
        """Has the others make its like."""
        number = next(self._numbers)
        self._known[pool] = number
        pool.changes = []
        weakref.finalize(pool, self._dropped.append, number)
        if number:
            self._ranks.tell(NewPool(number, tokens))

    def step(self, places: Batch, tokens: Tensor, positions: Tensor, wanted: Tensor) -> None:
        """Has the others begin the forward that follows."""
        pool, dropped = places.pool, [*self._dropped]
        del self._dropped[: len(dropped)]
        assert pool.changes is not None
        changes, pool.changes = tuple(pool.changes), []
        told = copy.copy(places)
        # A forward goes by tables: caches are for rank 0 to keep.
        nowhere = cast(SequenceCache, None)
        told.segments = [replace(segment, cache=nowhere) for segment in places.segments]
        del told.pool
        rows = (tokens.cpu(), positions.cpu(), wanted.cpu())
        self._ranks.tell(Step(self._known[pool], changes, tuple(dropped), *rows, told))
