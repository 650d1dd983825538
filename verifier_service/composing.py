"""Who takes part in a step, with which rows."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.scheduling import Planner
from cluster.speculation.catalogue import LAWS
from verifier_service.measurements import Measurements
from verifier_service.sequence import Phase, Sequence
from verifier_service.target import Rows

# Rows of a prompt that take part in a step at least, if one can.
LEAST_CHUNK = 64


class _BlockFrontier:
    """Lets admission see a block one position at a time, and never its tokens."""

    def __init__(self, max_q: tuple[float, ...]) -> None:
        self._max_q = max_q
        self._admitted = 0

    @property
    def next_max_q(self) -> float | None:
        return self._max_q[self._admitted] if self._admitted < len(self._max_q) else None

    def admit(self) -> None:
        self._admitted += 1


def compose(
    active: Iterable[Sequence], planner: Planner, step_rows: int, measurements: Measurements
) -> list[tuple[Sequence, Rows]]:
    """Blocks first, cut to what the planner admits, then prompts in what is left of `step_rows`.

    Every ready sequence has its row, and the first prompt a chunk, however small a step may be.
    """
    active = list(active)
    ready = [sequence for sequence in active if sequence.phase is Phase.READY]
    budget = max(0, step_rows - len(ready))
    measurements.step_begins(sequence.block.max_q for sequence in ready)
    budget -= _admit(ready, planner, budget, measurements)
    batch = []
    for sequence in ready:
        tokens = [sequence.tokens[-1], *sequence.block.tokens]
        batch.append((sequence, _rows(sequence, tokens, len(sequence.tokens) - 1, len(tokens))))
    # Sequences that decode may fill every step until they end; prompts must not wait for that.
    budget = max(budget, 1)
    for sequence in active:
        if sequence.phase is Phase.PREFILL and budget > 0:
            start = sequence.cache.length if sequence.cache is not None else 0
            end = min(sequence.given, start + max(budget, LEAST_CHUNK))
            rows = _rows(sequence, sequence.tokens[start:end], start, int(end == sequence.given))
            batch.append((sequence, rows))
            budget -= end - start
    return batch


def _admit(ready: list[Sequence], planner: Planner, rows: int, measurements: Measurements) -> int:
    """Cuts the blocks of sequences to what the planner admits; how many drafts that is in all.

    Which sequences share a step follows from when their blocks come, which may depend on what is in them.
    Where a draft must not be dropped for what it is, its sequence is admitted by itself, within bounds that
    were settled before it was drafted.
    """
    given, sharing = 0, []
    for sequence in ready:
        if LAWS[sequence.request.law.name].sends_rows:
            [drafts] = planner.admit([_BlockFrontier(sequence.block.max_q)], sequence.budget)
            sequence.admit(drafts)
            given += drafts
        else:
            sharing.append(sequence)
    if sharing:
        keys = sum(len(sequence.tokens) for sequence in sharing) / len(sharing)
        budget = measurements.budget(max(0, rows - given), len(ready) + given, keys)
        frontiers = [_BlockFrontier(sequence.block.max_q) for sequence in sharing]
        for sequence, drafts in zip(sharing, planner.admit(frontiers, budget), strict=True):
            sequence.admit(drafts)
            given += drafts
    return given


def _rows(sequence: Sequence, tokens: list[int], start: int, wanted: int) -> Rows:
    assert sequence.cache is not None
    return Rows(sequence.cache, tokens, start, wanted)
