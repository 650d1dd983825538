"""Ways to share a budget of rows, looking at one position at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from cluster.scheduling.calibration import Reach
from cluster.scheduling.planner import Budget, Frontier


def by_turns(frontiers: Sequence[Frontier], rows: int) -> list[int]:
    """Gives every sequence its first row before any its second, and so on."""
    taken = [0] * len(frontiers)
    open_sequences = list(range(len(frontiers)))
    while open_sequences and rows > 0:
        for index in list(open_sequences):
            if rows == 0:
                break
            if frontiers[index].next_max_q is None:
                open_sequences.remove(index)
                continue
            frontiers[index].admit()
            taken[index] += 1
            rows -= 1
    return taken


def by_survival(
    frontiers: Sequence[Frontier], budget: Budget, goes_on: Callable[[int, float], bool]
) -> list[int]:
    """Gives the next row to the position that is likeliest to be accepted together with all before it,
    until the budget is spent or goes_on(rows given, that chance) is false.

    Ties go to the sequence that comes first: they must not be broken by anything drafted.
    """
    taken = [0] * len(frontiers)
    reaches = [Reach(budget.calibration) for _ in frontiers]
    offers: list[tuple[float, int]] = []

    def offer(index: int) -> None:
        max_q = frontiers[index].next_max_q
        if max_q is not None:
            heappush(offers, (-reaches[index].add(max_q, frontiers[index].next_parent), index))

    for index in range(len(frontiers)):
        offer(index)
    while offers and sum(taken) < budget.rows:
        chance, index = heappop(offers)
        if not goes_on(sum(taken), -chance):
            break
        frontiers[index].admit()
        taken[index] += 1
        offer(index)
    return taken
