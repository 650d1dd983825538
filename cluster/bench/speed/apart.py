"""Contestants in processes of their own, as their users would run them.

Threads that one library keeps for its parallel loops slow down those of another in the same process.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.bench.speed.contestants import InProcess, Transformers
from cluster.bench.speed.peer import Reply, family, resident
from verifier_service.spec import VerifierSpec

Loading = Callable[[VerifierSpec], Sequence[Transformers | InProcess]]

_loaded: dict[str, Transformers | InProcess] = {}


@dataclass(frozen=True, slots=True)
class Apart:
    """A contestant that answers in another process."""

    name: str
    most: int
    pool: ProcessPoolExecutor

    def answer(self, kind: str, tokens: int) -> list[int]:
        return self.pool.submit(_answer, self.name, kind, tokens).result()

    def ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        """See Peer."""
        return self.pool.submit(_ask, self.name, prompts, tokens).result()

    def memory(self) -> int:
        """See Peer; of all contestants in that process, which share the weights."""
        return resident(family(self.pool.submit(os.getpid).result()))


@contextmanager
def apart(load: Loading, spec: VerifierSpec) -> Iterator[list[Apart]]:
    """Loads contestants in one new process, which ends with the context.

    load: a function of a module, for the other process imports it. Raises what it raises.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield [Apart(name, most, pool) for name, most in pool.submit(_load, load, spec).result()]


def _load(load: Loading, spec: VerifierSpec) -> list[tuple[str, int]]:
    _loaded.update((contestant.name, contestant) for contestant in load(spec))
    return [(contestant.name, contestant.most) for contestant in _loaded.values()]


def _answer(name: str, kind: str, tokens: int) -> list[int]:
    return _loaded[name].answer(kind, tokens)


def _ask(name: str, prompts: Sequence[str], tokens: int) -> list[Reply]:
    return _loaded[name].ask(prompts, tokens)
