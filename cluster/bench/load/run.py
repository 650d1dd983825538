"""Puts `truedraft bench load` together: loads the model, measures, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.bench.load.measuring import CHOSEN, Choice, Load, as_dict, choices, under_load
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.pictures import drawing
from cluster.terminal import Output, say
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

_KV_TOKENS, _MOST = 32768, 64
# Turns of a lone request are short.
_CHOICE_TOKENS = 48


def run_load(model: str | None, tokens: int, pairs: int, output: Output) -> bool:
    """Whether no target was missed. Raises CheckpointError, and OSError or ValueError for a picture that
    cannot be drawn."""
    spec = VerifierSpec(model=model or DEFAULT_REFERENCE, kv_tokens=_KV_TOKENS, max_active=_MOST, audit=False)
    loaded = load_target(spec)
    chosen = choices(loaded, spec, _CHOICE_TOKENS, pairs, say)
    loads = under_load(loaded, spec, tokens, pairs, say)
    output.give(
        as_dict(loads, chosen), lambda console: render(loads, chosen, console), lambda path: draw(loads, path)
    )
    verdicts = [verdict for each in loads for verdict in each.verdicts.values()]
    return "missed" not in (*verdicts, *(each.verdict for each in chosen))


def render(loads: Sequence[Load], chosen: Sequence[Choice], console: Console) -> None:
    """Throughput by load, and by length for one request."""
    table = Table("at a time", "", title="Speculation under load")
    for column in ("tokens/s", "over off", "tokens/round", "drafts/round", ""):
        table.add_column(column, justify="right")
    for load in loads:
        verdicts = dict(zip(load.ratios, load.verdicts.values(), strict=True))
        for name, row in load.rows.items():
            ratio = f"{load.ratios[name]}" if name in load.ratios else ""
            cells = (ratio, f"{row['tokens_per_round']:.2f}", f"{row['drafts_per_round']:.2f}")
            rate = f"{row['tokens_per_second']:.1f}"
            table.add_row(str(load.concurrent), name, rate, *cells, verdicts.get(name, ""))
    console.print(table)
    for choice in chosen:
        table = Table("", title=f"One request at a time: {choice.kind}")
        for column in ("tokens/s", "tokens/round", "drafts/round", "acceptance"):
            table.add_column(column, justify="right")
        for name, row in choice.rows.items():
            figures = (f"{row[key]:.2f}" for key in ("tokens_per_round", "drafts_per_round", "acceptance"))
            table.add_row(name, f"{row['tokens_per_second']:.1f}", *figures)
        console.print(table)
        console.print(f"{CHOSEN} over {choice.best}: {choice.ratio}: {choice.verdict}")


def draw(loads: Sequence[Load], path: Path) -> None:
    """Throughput over that without speculation, by requests at a time."""
    with drawing(path, 5.5, 3.8) as figure:
        axes = figure.subplots()
        at = [load.concurrent for load in loads]
        for name in loads[0].ratios:
            ratios = [load.ratios[name] for load in loads]
            middle = [ratio.median for ratio in ratios]
            spread = [
                [ratio.median - ratio.low for ratio in ratios],
                [ratio.high - ratio.median for ratio in ratios],
            ]
            axes.errorbar(at, middle, spread, marker="o", capsize=3, label=name)
        axes.axhline(1.0, color="grey", linewidth=0.9, linestyle=":", label="no speculation")
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [str(each) for each in at])
        axes.set(xlabel="requests at a time", ylabel="throughput over no speculation", ylim=(0, None))
        axes.legend()
