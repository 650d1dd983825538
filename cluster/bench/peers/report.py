"""What was measured: on the terminal, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.machine import Machine, median
from cluster.bench.peers.measuring import Measured, findings
from cluster.bench.prompts import KINDS
from cluster.bench.statistics import geometric_mean
from cluster.pictures import drawing

_SINGLE = "1"


@dataclass(frozen=True, slots=True)
class Outcome:
    """memory: bytes by peer; missing: why a peer did not take part, by its name."""

    machine: Machine
    model: str
    tokens: int
    measured: Sequence[Measured]
    memory: Mapping[str, int]
    missing: Mapping[str, str]


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "machine": asdict(outcome.machine),
        "model": outcome.model,
        "tokens": outcome.tokens,
        "measured": [asdict(each) | {"rate": each.rate} for each in outcome.measured],
        "memory": dict(outcome.memory),
        "missing": dict(outcome.missing),
        "findings": [asdict(each) | {"verdict": each.verdict} for each in findings(outcome.measured)],
    }


def render(outcome: Outcome, console: Console) -> None:
    peers = _peers(outcome)
    single = _table("", *KINDS, "mean", "MiB")
    single.title = "One request at a time, by kind: tokens/s (median), and memory"
    for peer in peers:
        rates = [_rate(outcome, peer, kind) for kind in KINDS]
        mean = _rate(outcome, peer, _SINGLE, rates)
        single.add_row(peer, *map(_shown, (*rates, mean)), f"{outcome.memory[peer] / 2**20:.0f}")
    console.print(single)
    # A row for each, since loads side by side would not fit a terminal.
    several = _table("", "at a time", "tokens/s", "first text, ms", "ms/token")
    several.title = "So many requests at a time (median)"
    for label in _columns(outcome):
        for peer in peers:
            rate = _rate(outcome, peer, label, [_rate(outcome, peer, kind) for kind in KINDS])
            if rate is not None:
                first = _latency(outcome, peer, label, lambda m: m.first)
                per_token = _latency(outcome, peer, label, lambda m: m.per_token)
                several.add_row(peer, label, *map(_shown, (rate, first, per_token)))
        several.add_section()
    console.print(several)
    ratios = _table("ratio", "on", "median [95 % interval]", "target", "verdict")
    for each in findings(outcome.measured):
        ratios.add_row(
            f"{each.over} / {each.under}", each.load, str(each.ratio), f"≥ {each.factor:g}", each.verdict
        )
    console.print(ratios)
    for name, why in outcome.missing.items():
        console.print(f"{name} did not take part: {why}", highlight=False)


def _table(name: str, *figures: str) -> Table:
    """Of which names give way where the terminal is narrow, and figures do not."""
    table = Table()
    table.add_column(name, overflow="fold")
    for each in figures:
        table.add_column(each, no_wrap=True)
    return table


def draw(outcome: Outcome, path: Path) -> None:
    """Tokens per second over the number of requests at a time."""
    with drawing(path, 6.4, 3.8) as figure:
        axes = figure.subplots()
        for peer in _peers(outcome):
            points = []
            for label in _columns(outcome):
                rate = _rate(outcome, peer, label, [_rate(outcome, peer, kind) for kind in KINDS])
                if rate is not None:
                    points.append((int(label), rate))
            axes.plot(*zip(*points, strict=True), marker="o", label=peer)
        axes.set(xscale="log", xlabel="requests at a time", ylabel="tokens/s of all together", ylim=(0, None))
        ticks = [int(label) for label in _columns(outcome)]
        axes.set_xticks(ticks, labels=map(str, ticks))
        axes.minorticks_off()
        axes.legend()


def _peers(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(each.peer for each in outcome.measured))


def _columns(outcome: Outcome) -> list[str]:
    several = {each.load for each in outcome.measured} - set(KINDS)
    return [_SINGLE, *sorted(several, key=int)]


def _of(outcome: Outcome, peer: str, load: str) -> list[Measured]:
    return [each for each in outcome.measured if (each.peer, each.load) == (peer, load)]


def _rate(outcome: Outcome, peer: str, load: str, single: Sequence[float | None] = ()) -> float | None:
    """Of the median repetition; one at a time, the geometric mean of the kinds."""
    if load == _SINGLE:
        return geometric_mean([rate for rate in single if rate is not None])
    found = [each.rate for each in _of(outcome, peer, load)]
    return median(found) if found else None


def _latency(
    outcome: Outcome, peer: str, load: str, figure: Callable[[Measured], float | None]
) -> float | None:
    """Milliseconds."""
    wanted = tuple(KINDS) if load == _SINGLE else (load,)
    found = [figure(each) for label in wanted for each in _of(outcome, peer, label)]
    known = [each for each in found if each is not None]
    return 1e3 * median(known) if known else None


def _shown(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1f}"
