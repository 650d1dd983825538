"""Puts `truedraft bench overhead` together."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.console import Console

from cluster.bench.machine import measure as measure_machine
from cluster.bench.otlp_sink import sinking
from cluster.bench.overhead import measure, render
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.scheduling import PlannerName
from cluster.telemetry.setup import shutdown
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

_BLOCK_LENGTH = 4


def run_overhead(model: str | None, tokens: int, pairs: int, minutes: float, as_json: bool) -> bool:
    """Whether no target was missed. minutes: after which no repetition is begun. Raises CheckpointError."""
    spec = VerifierSpec(
        model=model or DEFAULT_REFERENCE,
        planner=PlannerName.FIXED,
        block_length=_BLOCK_LENGTH,
        replay_share=0.0,
    )
    loaded = load_target(spec)
    machine = measure_machine()
    try:
        with sinking() as collector:
            costs = measure(loaded, spec, collector, tokens, pairs, _say, minutes)
    finally:
        shutdown()
    if as_json:
        content = [asdict(cost) | {"verdict": cost.verdict} for cost in costs]
        sys.stdout.write(json.dumps({"machine": asdict(machine), "costs": content}) + "\n")
    else:
        render(costs, Console())
    return all(cost.verdict != "missed" for cost in costs)


def _say(what: str) -> None:
    print(what, file=sys.stderr)
