"""`truedraft bench lossy`: the tables on the terminal, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from cluster.bench.lossy.answers import Effect
from cluster.bench.lossy.exact import Pitfall, Point
from cluster.bench.lossy.rounds import BLOCK
from cluster.bench.machine import Machine
from cluster.bench.statistics import Mean
from cluster.pictures import drawing
from cluster.speculation.law import STRICT_LAWS


@dataclass(frozen=True, slots=True)
class Size:
    """positions: of text, looked at exactly; checked: of these, how many are sampled too, `draws` times
    each; rounds: of drafting, for acceptance lengths; samples: of every task; tokens: the most of an
    answer."""

    positions: int
    checked: int
    draws: int
    rounds: int
    samples: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured; seconds: how long it took, loading left out."""

    model: str
    size: Size
    machine: Machine
    seconds: float
    pitfalls: tuple[Pitfall, ...]
    points: tuple[Point, ...]
    effects: tuple[Effect, ...]


def render(report: Report, console: Console) -> None:
    """Three tables: the pitfall of truncation, the collaborative laws, and what becomes of answers."""
    _pitfalls(report, console)
    _points(report, console)
    _effects(report, console)
    machine = report.machine
    console.print(
        f"{report.model}, {machine.processor}, {machine.threads} threads, torch {machine.torch}: "
        f"{report.seconds:.0f} s"
    )


def _pitfalls(report: Report, console: Console) -> None:
    size = report.size
    table = Table(
        "set A",
        "drafter",
        Column("law", overflow="fold"),
        "TV to p_A, exact",
        "out / p_A at most",
        "drafts kept",
        f"TV at {size.checked} of them, exact",
        f"and of {size.draws} samples",
        title=f"The same truncation set A, two laws: distance from the truly truncated target p_A "
        f"({size.positions} positions of text)",
    )
    for each in report.pitfalls:
        lossy = (str(each.tv_lossy), f"{each.overshoot:.0f}", f"{each.kept_lossy:.3f}")
        table.add_row(
            each.law.removeprefix("truncation:"),
            each.drafter,
            each.law,
            *lossy,
            f"{each.there:.3f}",
            f"{each.sampled_lossy:.3f}",
        )
        strict = (str(each.tv_strict), "1", f"{each.kept_strict:.3f}", "0", f"{each.sampled_strict:.3f}")
        table.add_row("", "", "rejection on p_A", *strict)
        chance = f"{each.noise:.3f}"
        table.add_row("", "", "p_A itself", "", "", "", "", chance, end_section=True)
    console.print(table)


def _points(report: Report, console: Console) -> None:
    table = Table(
        Column("law", overflow="fold"),
        "parameters",
        title=f"Collaborative laws: mean TV(out, p), mean KL(out ‖ p), out / p at most, "
        f"measured tokens a round of {BLOCK} drafts ({report.size.rounds} rounds)",
    )
    drafters = list(dict.fromkeys(each.drafter for each in report.points))
    for drafter in drafters:
        table.add_column(f"drafter {drafter}", justify="right")
    columns = [[each for each in report.points if each.drafter == drafter] for drafter in drafters]
    for row in zip(*columns, strict=True):
        params = ", ".join(f"{name} {value:g}" for name, value in row[0].params.items())
        cells = (
            f"{each.tv.mean:.3f}  {each.kl.mean:.3f}  {each.overshoot:8.3g}  {each.length.mean:.2f}"
            for each in row
        )
        table.add_row(row[0].law.removeprefix("collaborative:"), params, *cells)
    console.print(table)


def _effects(report: Report, console: Console) -> None:
    size = report.size
    table = Table(
        Column("law", overflow="fold"),
        "exact copies",
        "exact edits",
        "repeated trigrams",
        "log p a token",
        "drafts kept",
        title=f"Answers, every token drafted ({size.samples} of each task, up to {size.tokens} tokens); "
        "differences are paired",
    )
    for each in report.effects:
        means = (each.copy, each.edit, each.repetition, each.logprob)
        table.add_row(each.contestant, *map(str, means), f"{each.kept:.3f}")
        if each.baseline:
            minus = (each.minus_copy, each.minus_edit, each.minus_repetition, each.minus_logprob)
            table.add_row(f"  minus {each.baseline}", *map(_signed, minus), "")
    console.print(table)


def _signed(mean: Mean | None) -> str:
    """A difference, marked where its interval leaves out 0."""
    if mean is None:
        return ""
    mark = " *" if mean.low > 0.0 or mean.high < 0.0 else ""
    return f"{mean.mean:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}]{mark}"


def as_json(report: Report) -> dict[str, Any]:
    """Everything that was measured, for machines."""
    return asdict(report)


def draw(points: Sequence[Point], path: Path) -> None:
    """Acceptance length over two measures of distortion, panels for each drafter, in the file's format."""
    measures: dict[str, Callable[[Point], float]] = {
        "TV(out, p)": lambda point: point.tv.mean,
        "KL(out ‖ p), nats": lambda point: point.kl.mean,
    }
    drafters = list(dict.fromkeys(each.drafter for each in points))
    rows, columns = len(measures), len(drafters)
    with drawing(path, 4.2 * columns, 3.1 * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharey="col")
        for along, (measure, value) in zip(panels, measures.items(), strict=True):
            for axes, drafter in zip(along, drafters, strict=True):
                of_drafter = [each for each in points if each.drafter == drafter]
                strict = [each for each in of_drafter if each.law in STRICT_LAWS]
                relaxed = [each for each in of_drafter if each.law not in STRICT_LAWS]
                for law in dict.fromkeys(each.law for each in relaxed):
                    line = [strict[0], *(each for each in relaxed if each.law == law)]
                    label = law.removeprefix("collaborative:")
                    lengths = [each.length.mean for each in line]
                    axes.plot([value(each) for each in line], lengths, marker="o", ms=3, lw=1, label=label)
                for each, marker in zip(strict, "sD", strict=True):
                    mean, low, high = each.length.mean, each.length.low, each.length.high
                    style = {"marker": marker, "ms": 4, "lw": 0.8, "color": "black", "ls": ""}
                    axes.errorbar(
                        0.0, mean, [[mean - low], [high - mean]], label=f"{each.law} (strict)", **style
                    )
                axes.set(xlabel=f"mean {measure} of a drafted token", title=f"drafter {drafter}")
                axes.grid(alpha=0.3)
            along[0].set_ylabel(f"tokens a round of {BLOCK} drafts")
        panels[0][0].legend()
