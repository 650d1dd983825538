"""Contestants in processes of their own, as their users would run them.

Threads that one library keeps for its parallel loops slow down those of another in the same process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.bench.contestants import Contestant
from verifier_service.spec import VerifierSpec

Loading = Callable[[VerifierSpec], Sequence[Contestant]]

_loaded: dict[str, Contestant] = {}


@dataclass(frozen=True, slots=True)
class Apart:
    """A contestant that answers in another process."""

    name: str
    pool: ProcessPoolExecutor

    def answer(self, kind: str, tokens: int) -> list[int]:
        return self.pool.submit(_answer, self.name, kind, tokens).result()


@contextmanager
def apart(load: Loading, spec: VerifierSpec) -> Iterator[list[Apart]]:
    """Loads contestants in one new process, which ends with the context.

    load: a function of a module, for the other process imports it. Raises what it raises.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield [Apart(name, pool) for name in pool.submit(_load, load, spec).result()]


def _load(load: Loading, spec: VerifierSpec) -> list[str]:
    _loaded.update((contestant.name, contestant) for contestant in load(spec))
    return list(_loaded)


def _answer(name: str, kind: str, tokens: int) -> list[int]:
    return _loaded[name].answer(kind, tokens)
