"""Laws that emit one winner after the other: walks that ask for the winner of a row, and who answers them."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from torch import Tensor

from cluster.speculation.messages import Verdict
from cluster.speculation.noise import Noise
from cluster.speculation.race import winners

# Asks with an absolute position and the row [V] that holds there, is sent the token that wins.
Walk = Generator[tuple[int, Tensor], int, Verdict]


def run(walk: Walk, noise: Noise) -> Verdict:
    """Takes one walk to its end."""
    field = noise.field
    try:
        position, row = next(walk)
        while True:
            position, row = walk.send(field.winner(position, row))
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


def run_together(walks: Sequence[Walk], noises: Sequence[Noise]) -> list[Verdict]:
    """The same of several walks, a step of all that go on at a time; their rows are of one vocabulary."""
    fields = [noise.field for noise in noises]
    verdicts: dict[int, Verdict] = {}
    asked = {index: next(walk) for index, walk in enumerate(walks)}
    while asked:
        tokens = winners(
            [fields[index] for index in asked],
            [position for position, _ in asked.values()],
            [row for _, row in asked.values()],
        )
        answered = zip(list(asked), tokens, strict=True)
        asked = {}
        for index, token in answered:
            try:
                asked[index] = walks[index].send(token)
            except StopIteration as end:
                verdicts[index] = end.value
    return [verdicts[index] for index in range(len(walks))]
