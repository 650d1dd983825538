"""`truedraft train-drafter`: progress while it lasts, and a table of what would have been accepted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cluster.checkpoints import DEFAULT_REFERENCE
from drafter_service.training.measuring import Accepted, pooled
from drafter_service.training.picture import draw
from drafter_service.training.prompts import read_prompts
from drafter_service.training.regenerate import Answering
from drafter_service.training.run import Told, Trained, Wanted, summary, train
from drafter_service.training.trainer import Recipe, kept

# The rate that a drafter is trained further at.
_FURTHER = 6e-4


def run(
    prompts: Path,
    out: Path,
    wanted: Wanted,
    minutes: float,
    answer_tokens: int,
    as_json: bool,
) -> None:
    """Raises PromptsError, CheckpointError, and ValueError for what cannot be trained."""
    read = read_prompts(prompts)
    out.mkdir(parents=True, exist_ok=True)
    wanted = replace(wanted, target=wanted.target or DEFAULT_REFERENCE)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        answering = progress.add_task(f"answers to {len(read)} prompts", now="")
        training = progress.add_task("training", total=minutes, now="")

        def answered(done: int, count: int) -> None:
            progress.update(answering, completed=done, total=count, now=f"{done} of {count} batches")

        def trained(done: float, loss: float) -> None:
            progress.update(training, completed=min(done, minutes), now=f"loss {loss:.3f}")

        told = Told(answered, trained)
        # Ten points at least: the best of them is kept.
        recipe = Recipe(minutes=minutes, every=min(60.0, 6 * minutes))
        if wanted.start:
            # Weights that are trained are lost at the rate of new ones.
            recipe = replace(recipe, rate=_FURTHER)
        result = train(wanted, read, Answering(most=answer_tokens), recipe, out, told)
    if result.curve:
        draw(result.curve, out / "learning-curve.svg")
    (out / "training.json").write_text(json.dumps(summary(result), indent=1) + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(json.dumps(summary(result)) + "\n")
    else:
        _report(result, out, Console())


def _report(result: Trained, out: Path, console: Console) -> None:
    table = Table("domain", "tokens a round", "n-gram", "n-gram drafts in", title="held-out greedy answers")
    rows = [*((name or "(none)", name) for name in sorted(result.drafter))]
    for shown, name in rows:
        table.add_row(shown, *_cells(result.drafter[name], result.ngram[name]))
    if rows:
        table.add_section()
        table.add_row("all", *_cells(pooled(result.drafter), pooled(result.ngram)))
        console.print(table)
    else:
        console.print("Too few prompts to hold any out: nothing was measured.")
    point, last = kept(result.curve), result.curve[-1]
    if point.step != last.step:
        began = "what it began with" if point.step == 1 else f"those of minute {point.minutes:.1f}"
        console.print(
            f"The weights are {began}: held-out loss was {point.held_out:.2f} then, {last.held_out:.2f} at "
            "the end. More prompts help, more minutes do not.",
            soft_wrap=True,
        )
    left = f", {result.too_long} prompts were too long" if result.too_long else ""
    console.print(
        f"{result.answers} answers of {result.tokens} tokens{left}; the drafter is in {out}", soft_wrap=True
    )


def _cells(drafter: Accepted, ngram: Accepted) -> tuple[str, str, str]:
    rounds = ngram.rounds + ngram.undrafted
    return (
        f"{drafter.length:.2f}",
        f"{ngram.overall:.2f}",
        f"{ngram.rounds / rounds:.0%} of rounds" if rounds else "",
    )
