"""Who takes part in a step, with which rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster.kernels.attention import PAGE
from cluster.scheduling import Planner
from cluster.speculation.catalogue import LAWS
from cluster.speculation.messages import DraftBlock
from verifier_service.measuring.measurements import Measurements
from verifier_service.requests.sequence import Phase, Sequence
from verifier_service.target.target import Rows

# Rows of a prompt that take part in a step at least, if one can.
LEAST_CHUNK = 64


class _BlockFrontier:
    """Lets admission see a block one position at a time, and never its tokens."""

    def __init__(self, block: DraftBlock) -> None:
        self._max_q, self._parents = block.max_q, block.parents
        self._admitted = 0

    @property
    def next_max_q(self) -> float | None:
        return self._max_q[self._admitted] if self._admitted < len(self._max_q) else None

    @property
    def next_parent(self) -> int:
        return self._admitted - 1 if self._parents is None else self._parents[self._admitted]

    def admit(self) -> None:
        self._admitted += 1


def compose(
    active: Iterable[Sequence],
    planner: Planner,
    step_rows: int,
    measurements: Measurements,
    prepare: Callable[[Sequence], bool],
) -> list[tuple[Sequence, Rows]]:
    """Blocks first, cut to what the planner admits, then what is behind, prompts above all, in what is left
    of `step_rows`.

    Every ready sequence has its row, and the oldest that is behind a chunk, however small a step may be.
    prepare: finds pages for what a sequence does next; False where there are none, and others, younger ones,
    may have lost theirs.
    """
    ready: list[Sequence] = []
    behind: list[Sequence] = []
    for sequence in sorted(active, key=lambda each: each.turn):
        if sequence.cache is None:
            continue
        late = sequence.behind > 0
        if (late or sequence.phase is Phase.READY) and prepare(sequence):
            # What was found computed may have been all that was lacking.
            late = late and sequence.behind > 0
            if late or sequence.phase is Phase.READY:
                (behind if late else ready).append(sequence)
    budget = max(0, step_rows - len(ready))
    measurements.step_begins(sequence.block for sequence in ready)
    budget -= _admit(ready, planner, budget, measurements)
    batch = []
    for sequence in ready:
        tokens = [sequence.tokens[-1], *sequence.block.tokens]
        parents = sequence.block.parents
        above = None if parents is None else (-1, *(parent + 1 for parent in parents))
        batch.append((sequence, _rows(sequence, tokens, len(sequence.tokens) - 1, len(tokens), above)))
    # Sequences that decode may fill every step until they end; prompts must not wait for that.
    batch.extend(_chunks(behind, max(budget, 1)))
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
            [drafts] = planner.admit([_BlockFrontier(sequence.block)], sequence.budget)
            sequence.admit(drafts)
            given += drafts
        else:
            sharing.append(sequence)
    if sharing:
        keys = sum(len(sequence.tokens) for sequence in sharing) / len(sharing)
        budget = measurements.budget(max(0, rows - given), len(ready) + given, keys)
        frontiers = [_BlockFrontier(sequence.block) for sequence in sharing]
        for sequence, drafts in zip(sharing, planner.admit(frontiers, budget), strict=True):
            sequence.admit(drafts)
            given += drafts
    return given


def _chunks(behind: list[Sequence], budget: int) -> list[tuple[Sequence, Rows]]:
    """Of sequences that are behind, in the order of their arrival: an equal share for each, the oldest first
    and then those that have least, so that a long prompt neither holds up the short ones nor is held up.

    One whose next page another is about to compute waits to take it over.
    """
    making: set[bytes] = set()
    takes_part = []
    for sequence in behind:
        page = _next_page(sequence)
        if page is None or page not in making:
            takes_part.append(sequence)
            making.update([page] if page is not None else [])
    takes_part[1:] = sorted(takes_part[1:], key=_computed)
    given = dict.fromkeys((sequence.number for sequence in behind), 0)
    for share in (max(LEAST_CHUNK, budget // max(1, len(takes_part))), budget):
        for sequence in takes_part:
            more = min(sequence.behind - given[sequence.number], share, max(budget, LEAST_CHUNK))
            if budget > 0 and more > 0:
                given[sequence.number] += more
                budget -= more
    batch = []
    for sequence in behind:
        assert sequence.cache is not None
        start = sequence.cache.length
        end = min(start + given[sequence.number], sequence.cache.reach)
        sequence.cache.fit(end)
        if end > start:
            last = sequence.phase is Phase.PREFILL and end == sequence.given
            batch.append((sequence, _rows(sequence, sequence.tokens[start:end], start, int(last))))
    return batch


def _next_page(sequence: Sequence) -> bytes | None:
    """The name of the page that it computes next, if it has to compute all of it and others may have it."""
    assert sequence.cache is not None
    if sequence.replay is not None or not sequence.cache.pool.shared:
        return None
    computed = _computed(sequence)
    page = computed // PAGE
    if (page + 1) * PAGE > computed + sequence.behind:
        return None
    return sequence.names.of(sequence.tokens, page)


def _computed(sequence: Sequence) -> int:
    assert sequence.cache is not None
    return sequence.cache.length


def _rows(
    sequence: Sequence, tokens: list[int], start: int, wanted: int, above: tuple[int, ...] | None = None
) -> Rows:
    assert sequence.cache is not None
    return Rows(sequence.cache, tokens, start, wanted, above, sequence.request.adapter)
