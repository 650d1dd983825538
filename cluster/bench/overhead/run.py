"""Puts `truedraft bench overhead` together. Repetitions are appended to a file, so that a stopped run goes on
where it was, and a long one can be taken in parts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from cluster.bench.machine import measure as measure_machine
from cluster.bench.overhead.measuring import Pair, costs, measure, render
from cluster.bench.overhead.otlp_sink import sinking
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.scheduling import PlannerName
from cluster.telemetry.setup import shutdown
from cluster.terminal import Output, say
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

_BLOCK_LENGTH = 4


def run_overhead(
    model: str | None, tokens: int, pairs: int, minutes: float, out: Path, as_json: bool
) -> bool:
    """Whether no target was missed. pairs: in all, those of earlier runs included; minutes: after which no
    repetition is begun. Raises CheckpointError."""
    about: dict[str, str | int] = {"model": model or DEFAULT_REFERENCE, "tokens": tokens}
    lines = out.read_text().splitlines() if out.exists() else []
    records = [record for record in map(json.loads, lines) if about.items() <= record.items()]
    turns: list[Pair] = [record["seconds"] for record in records]
    if len(turns) < pairs:
        _measure(about, turns, pairs, minutes, out)
    found = costs(turns)
    machine = measure_machine()
    content = [asdict(cost) | {"verdict": cost.verdict} for cost in found]
    figures = {"machine": asdict(machine), "pairs": len(turns), "costs": content}
    Output(as_json).give(figures, lambda console: render(found, len(turns), console))
    return all(cost.verdict != "missed" for cost in found)


def _measure(about: dict[str, str | int], turns: list[Pair], pairs: int, minutes: float, out: Path) -> None:
    spec = VerifierSpec(
        model=str(about["model"]),
        planner=PlannerName.FIXED,
        block_length=_BLOCK_LENGTH,
        replay_share=0.0,
    )
    loaded = load_target(spec)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with sinking() as collector, out.open("a") as file:

            def keep(turn: Pair) -> None:
                turns.append(turn)
                file.write(json.dumps(about | {"seconds": turn}) + "\n")
                file.flush()
                say(f"{len(turns)} of {pairs}")

            measure(loaded, spec, collector, int(about["tokens"]), list(turns), pairs, keep, minutes)
    finally:
        shutdown()
