"""`truedraft lab`: the table on the terminal, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from cluster.lab.budgets import BUDGETS
from cluster.lab.rules import RULES, STRICT
from cluster.lab.table import (
    BLOCK_LENGTH,
    EXACT,
    KINDS,
    Cell,
    LossyLaw,
    as_dict,
    compute,
    compute_budgets,
    compute_lossy,
    worlds,
)
from cluster.pictures import drawing
from cluster.terminal import Output

# A distance that is drawn in full colour.
_STRONG = 0.25


def run(output: Output) -> bool:
    """Computes and prints everything; says whether each cell is what is known of it."""
    err = Console(stderr=True)
    parts = [*(partial(compute, [rule]) for rule in RULES), *(partial(compute_budgets, [b]) for b in BUDGETS)]
    told = track(parts, "enumerating", console=err, transient=True, disable=not err.is_terminal)
    # Rules of one kind together.
    cells = sorted((cell for part in told for cell in part()), key=lambda cell: KINDS.index(cell.kind))
    lossy = compute_lossy()
    output.give(
        as_dict(cells, lossy), lambda console: render(cells, lossy, console), lambda path: draw(cells, path)
    )
    return all(cell.as_expected for cell in cells)


def shown(cell: Cell) -> str:
    """A distance in words: exact, a number, or a dash where the rule cannot be played."""
    if cell.tv is None:
        return "–"
    return "exact" if cell.tv < EXACT else f"{cell.tv:.3f}"


def render(cells: Sequence[Cell], lossy: Sequence[LossyLaw], console: Console) -> None:
    """Two tables: the strict laws under every rule, the lossy laws under the first."""
    table = Table(
        title=f"Total variation between output and target: the largest of {len(worlds())} small worlds, "
        f"blocks of {BLOCK_LENGTH}"
    )
    table.add_column("rule")
    for law in STRICT:
        table.add_column(law, justify="right")
    for index in range(0, len(cells), len(STRICT)):
        row = cells[index : index + len(STRICT)]
        style = ["red" if cell.tv is not None and cell.tv >= EXACT else "" for cell in row]
        marked = [f"[{s}]{shown(cell)}[/]" if s else shown(cell) for s, cell in zip(style, row, strict=True)]
        ends = index + len(STRICT) < len(cells) and cells[index + len(STRICT)].kind != row[0].kind
        table.add_row(row[0].rule, *marked, end_section=ends)
    console.print(table)
    second = Table(title="Lossy laws at one drafted position: the largest of the same worlds")
    for name in ("law", "parameters"):
        second.add_column(name)
    for name in ("TV to the target", "out / p at most"):
        second.add_column(name, justify="right")
    for each in lossy:
        params = ", ".join(f"{name} {value:g}" for name, value in each.params.items())
        second.add_row(each.law, params, f"{each.tv:.3f}", f"{each.overshoot:.2f}")
    console.print(second)
    unexpected = [f"{cell.rule} under {cell.law}" for cell in cells if not cell.as_expected]
    if unexpected:
        console.print(f"[red]not as expected:[/] {'; '.join(unexpected)}")


def draw(cells: Sequence[Cell], path: Path) -> None:
    """The first table as a picture, in the format that the file's ending names."""
    names = list(dict.fromkeys(cell.rule for cell in cells))
    # Takes a second to import, and only a picture needs it.
    from matplotlib.patches import Rectangle

    with drawing(path, 8.0, 0.3 * len(names) + 1.0) as figure:
        axes = figure.subplots()
        for cell in cells:
            x, y = STRICT.index(cell.law), names.index(cell.rule)
            biased = cell.tv is not None and cell.tv >= EXACT
            if cell.tv is None:
                colour: tuple[float, float, float] = (0.94, 0.94, 0.94)
            elif biased:
                fade = 0.8 * (1.0 - min(cell.tv / _STRONG, 1.0))
                colour = (0.86 + 0.1 * fade, 0.35 + 0.6 * fade, 0.3 + 0.6 * fade)
            else:
                colour = (0.80, 0.92, 0.80)
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
            axes.text(x + 0.5, y + 0.5, shown(cell), ha="center", va="center")
        axes.set(xlim=(0, len(STRICT)), ylim=(len(names), 0))
        axes.set_xticks([k + 0.5 for k in range(len(STRICT))], STRICT)
        axes.set_yticks([k + 0.5 for k in range(len(names))], names)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title("Total variation between what is emitted and the target", fontsize=10)
