"""Puts `truedraft bench overhead` together. Turns are appended to a file; a stopped run goes on there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.bench.machine import measure as measure_machine
from cluster.bench.overhead.measuring import Contestants, costs, render
from cluster.bench.overhead.otlp_sink import sinking
from cluster.bench.resumable import Progress, Record
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.scheduling import PlannerName
from cluster.telemetry.setup import shutdown
from cluster.terminal import Output, say
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

_BLOCK_LENGTH = 4


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int

    @property
    def key(self) -> str:
        return str(self.number)


def run_overhead(
    model: str | None, tokens: int, pairs: int, minutes: float, out: Path, as_json: bool
) -> bool:
    """Whether no target was missed. pairs: in all, those of earlier runs included; minutes: after which no
    turn is begun. Raises CheckpointError."""
    reference = model or DEFAULT_REFERENCE
    setting = {"model": reference, "tokens": tokens, "block_length": _BLOCK_LENGTH}
    progress: Progress[_Turn] = Progress(out, "turn", setting)
    with ExitStack() as stack:
        contestants: Contestants | None = None

        def check(turn: _Turn) -> Record:
            nonlocal contestants
            contestants = contestants or stack.enter_context(_contestants(reference, tokens))
            say(f"{turn.number + 1} of {pairs}")
            return {"took": contestants.turn(turn.number)}

        progress.run(map(_Turn, range(pairs)), minutes, check)
    turns = [record["took"] for record in progress.records.values()]
    found = costs(turns)
    machine = measure_machine()
    content = [asdict(cost) | {"verdict": cost.verdict} for cost in found]
    figures = {"machine": asdict(machine), "pairs": len(turns), "costs": content}
    Output(as_json).give(figures, lambda console: render(found, len(turns), console))
    return all(cost.verdict != "missed" for cost in found)


@contextmanager
def _contestants(model: str, tokens: int) -> Iterator[Contestants]:
    spec = VerifierSpec(model=model, planner=PlannerName.FIXED, block_length=_BLOCK_LENGTH, replay_share=0.0)
    try:
        with sinking() as collector:
            contestants = Contestants(load_target(spec), spec, collector, tokens)
            # The first turn of a process is slower, and is not kept.
            contestants.turn(0)
            yield contestants
    finally:
        shutdown()
