"""Puts `truedraft bench network` together: loads the model, measures, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.bench.network.measuring import TRIPS, UNHIDDEN, Outcome, as_dict, measure, trip
from cluster.bench.turns import LOCAL, OFF
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.pictures import drawing
from cluster.terminal import Output, say
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

# Requests at a time; for the cache, so that every engine has room and none much more.
CONCURRENT = (8, 1)
KV_TOKENS = 8192


def run_network(model: str | None, tokens: int, pairs: int, output: Output) -> bool:
    """Whether no target was missed. Raises CheckpointError, and OSError or ValueError for a picture that
    cannot be drawn."""
    spec = VerifierSpec(model=model or DEFAULT_REFERENCE, kv_tokens=KV_TOKENS, audit=False)
    loaded = load_target(spec)
    outcomes = [measure(loaded, spec, concurrent, tokens, pairs, say) for concurrent in CONCURRENT]
    output.give(
        as_dict(outcomes), lambda console: render(outcomes, console), lambda path: draw(outcomes, path)
    )
    return all(verdict != "missed" for each in outcomes for verdict in each.verdicts.values())


def render(outcomes: Sequence[Outcome], console: Console) -> None:
    """A table for each number of requests at a time, and whether targets are met."""
    for outcome in outcomes:
        title = f"{outcome.concurrent} at a time; a verify step takes {1e3 * outcome.step:.1f} ms"
        table = Table("", title=title)
        for column in (
            "tokens/s",
            "over off",
            "tokens/round",
            "drafts/round",
            "went on",
            "measured/predicted",
        ):
            table.add_column(column, justify="right")
        base = outcome.rows[OFF]["tokens_per_second"]
        for name, row in outcome.rows.items():
            predicted = outcome.predicted.get(name)
            table.add_row(
                name,
                f"{row['tokens_per_second']:.1f}",
                f"{row['tokens_per_second'] / base:.2f}",
                f"{row['tokens_per_round']:.2f}",
                f"{row['drafts_per_round']:.2f}",
                f"{row['meanwhile']:.0%}",
                f"{predicted:.3f}" if predicted is not None else "",
            )
        console.print(table, width=110)
        console.print(
            f"round trip of a step, over none: {outcome.hidden}; nothing hidden: {outcome.unhidden}"
        )
        for target, verdict in outcome.verdicts.items():
            console.print(f"{target}: {verdict}")


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Throughput over the round trip, against no speculation and a drafter in process."""
    with drawing(path, 5 * len(outcomes), 3.8) as figure:
        every = figure.subplots(1, len(outcomes))
        for axes, outcome in zip(every, outcomes, strict=True):
            rates = {name: row["tokens_per_second"] for name, row in outcome.rows.items()}
            axes.plot(TRIPS, [rates[trip(steps)] for steps in TRIPS], marker="o", label="over the network")
            axes.plot([1.0], [rates[UNHIDDEN]], marker="x", linestyle="", color="C3", label=UNHIDDEN)
            for name, style in ((LOCAL, "--"), (OFF, ":")):
                axes.axhline(rates[name], color="grey", linewidth=0.9, linestyle=style, label=name)
            axes.set(xlabel="round trip, verify steps", ylabel="tokens/s", ylim=(0, None))
            axes.set_title(f"{outcome.concurrent} at a time")
            axes.legend()
