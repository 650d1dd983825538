"""`truedraft bench lossy`: the tables on the terminal, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.answers import Effect
from cluster.bench.lossy import BLOCK, Pitfall, Point
from cluster.bench.machine import Machine
from cluster.bench.statistics import Mean


@dataclass(frozen=True, slots=True)
class Size:
    """positions: of text, looked at exactly; checked: of these, how many are sampled too, `draws` times
    each; samples: of every task; tokens: the most of an answer."""

    positions: int
    checked: int
    draws: int
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
        "truncation",
        "drafter",
        "law",
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
            each.law, each.drafter, each.law, *lossy, f"{each.there:.3f}", f"{each.sampled_lossy:.3f}"
        )
        strict = (str(each.tv_strict), "1", f"{each.kept_strict:.3f}", "0", f"{each.sampled_strict:.3f}")
        table.add_row("", "", "rejection on p_A", *strict)
        chance = f"{each.noise:.3f}"
        table.add_row("", "", "p_A itself", "", "", "", "", chance, end_section=True)
    console.print(table)


def _points(report: Report, console: Console) -> None:
    table = Table(
        "law",
        "parameters",
        "drafter",
        "TV(out, p)",
        "out / p at most",
        "drafts kept",
        f"tokens a round of {BLOCK}",
        title="Collaborative laws: what distortion buys",
    )
    for each in report.points:
        params = ", ".join(f"{name} {value:g}" for name, value in each.params.items())
        numbers = (str(each.tv), f"{each.overshoot:.2f}", f"{each.kept:.3f}", f"{each.length:.2f}")
        table.add_row(each.law, params, each.drafter, *numbers)
    console.print(table)


def _effects(report: Report, console: Console) -> None:
    size = report.size
    table = Table(
        "law",
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
    points = [asdict(each) | {"length": each.length} for each in report.points]
    return asdict(report) | {"points": points}


def draw(points: Sequence[Point], path: Path) -> None:
    """Acceptance length over distortion, a panel for each drafter, in the format of the file's ending."""
    # Takes a second to import, and only a picture needs it.
    import matplotlib as mpl

    mpl.use("agg")
    # Text stays text, and the same points give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "truedraft", "font.size": 9})
    from matplotlib import pyplot

    drafters = list(dict.fromkeys(each.drafter for each in points))
    figure, panels = pyplot.subplots(
        1, len(drafters), figsize=(4.4 * len(drafters), 3.6), layout="constrained", squeeze=False
    )
    for axes, drafter in zip(panels[0], drafters, strict=True):
        strict, *relaxed = [each for each in points if each.drafter == drafter]
        for law in dict.fromkeys(each.law for each in relaxed):
            line = [strict, *(each for each in relaxed if each.law == law)]
            label = law.removeprefix("collaborative:")
            axes.plot(
                [x.tv.mean for x in line], [x.length for x in line], marker="o", ms=3, lw=1, label=label
            )
        axes.plot([0.0], [strict.length], marker="s", color="black", ls="", label="rejection (strict)")
        axes.set(xlabel="distortion of a drafted token: mean TV(out, p)", title=f"drafter {drafter}")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel(f"tokens a round of {BLOCK} drafts")
    panels[0][0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=130, metadata=metadata)
    pyplot.close(figure)
