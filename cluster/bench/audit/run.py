"""Puts `truedraft bench audit` together: rows, scenarios and a table. Findings are appended to a file,
from which a stopped run resumes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.audit.rows import recorded
from cluster.bench.audit.simulation import SCENARIOS, Outcome, Places, Scenario, simulate
from cluster.bench.resumable import Progress, Record
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.terminal import Output, say

# Findings in an older format are measured again.
_FORMAT = [field.name for field in fields(Outcome)]


@dataclass(frozen=True, slots=True)
class _Run:
    """A scenario over so many tokens."""

    scenario: Scenario
    tokens: int

    @property
    def key(self) -> str:
        return f"{self.scenario.key}: {self.tokens}"


def run_audit(
    model: str | None, layers: int, out: Path, minutes: float, honest: int, faulty: int, as_json: bool
) -> bool:
    """Whether every tested scenario gave what is expected of it. layers: of the model that its drafter keeps;
    minutes: after these no scenario is started. Raises CheckpointError."""
    reference = model or DEFAULT_REFERENCE
    rows = out.with_name(f"audit-rows-{Path(reference).name}-{layers}.npz")
    progress: Progress[_Run] = Progress(out, "run", {"model": reference, "layers": layers, "format": _FORMAT})
    places: Places | None = None

    def check(run: _Run) -> Record:
        nonlocal places
        places = places or recorded(rows, reference, layers, say)
        key = run.scenario.key
        say(key)
        return {"outcome": asdict(simulate(places, run.scenario, run.tokens, zlib.crc32(key.encode()) << 20))}

    runs = [_Run(scenario, faulty if scenario.fault else honest) for scenario in SCENARIOS]
    progress.run(runs, minutes, check)
    done = [(run.scenario, progress.records[run.key]) for run in runs if run.key in progress.records]
    tested = [(scenario, Outcome(**record["outcome"])) for scenario, record in done]
    seconds = sum(record["seconds"] for _, record in done)
    Output(as_json).give(
        _as_json(reference, layers, tested), lambda console: _render(tested, seconds, console)
    )
    return all(outcome.as_expected(scenario) for scenario, outcome in tested) and _has_power(tested)


def _has_power(tested: Sequence[tuple[Scenario, Outcome]]) -> bool:
    """Of faults that are large or small as the drafter is good or weak, ranks must find one at least."""
    biased = [outcome for scenario, outcome in tested if "ranks" in scenario.perhaps]
    everything = sum("ranks" in scenario.perhaps for scenario in SCENARIOS)
    return len(biased) < everything or any(outcome.needed["ranks"] for outcome in biased)


def _as_json(model: str, layers: int, tested: Sequence[tuple[Scenario, Outcome]]) -> dict[str, Any]:
    findings = [
        {
            "law": scenario.law.name,
            "fault": scenario.fault,
            **asdict(outcome),
            "as_expected": outcome.as_expected(scenario),
        }
        for scenario, outcome in tested
    ]
    return {"model": model, "drafter": f"{layers} of its layers", "findings": findings}


def _render(tested: Sequence[tuple[Scenario, Outcome]], seconds: float, console: Console) -> None:
    table = Table(title="Live audits: when p < 1e-6, or another token is decoded, and where they end")
    for name in ("law, fault", "tokens", "a round", "found by, after tokens", "not by", ""):
        table.add_column(name, justify="right" if name in ("tokens", "a round") else "left")
    for scenario, outcome in tested:
        found = [f"{name} {tokens:,}" for name, tokens in outcome.needed.items() if tokens is not None]
        others = [
            f"{name}, p = {p_value:.2g}"
            for name, p_value in outcome.p_values.items()
            if outcome.needed[name] is None and outcome.bets[name]
        ]
        table.add_row(
            f"{scenario.law}, {scenario.fault or 'none'}",
            f"{outcome.tokens:,}",
            f"{outcome.tokens / outcome.rounds:.2f}",
            "\n".join(found) or "none",
            "\n".join(others),
            "as it should be" if outcome.as_expected(scenario) else "WRONG",
            end_section=True,
        )
    console.print(table)
    if not _has_power(tested):
        console.print("WRONG: ranks find no fallback that hangs on the drafts")
    console.print(f"{len(tested)} of {len(SCENARIOS)} tested ({seconds:.0f} s)")
