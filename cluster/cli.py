"""The `truedraft` command.

Modules that take seconds to import (torch, Ray) are imported by the commands that need them.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cluster.bench.cli import bench
from cluster.commands.generate import generate
from cluster.commands.serve import serve
from cluster.terminal import Json, Output, failures

app = typer.Typer(
    help="Speculative serving that says what it served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(bench, name="bench")
app.command()(serve)
app.command()(generate)


def _version(asked: bool) -> None:
    if asked:
        print(f"truedraft {version('truedraft')}")
        raise typer.Exit


@app.callback()
def common(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Speculative serving that says what it served."""


@app.command()
def demo(
    tokens: Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")] = 64,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, answer five prompts, and show the evidence."""
    print("starting; the first start downloads the model", file=sys.stderr, flush=True)
    with failures(as_json):
        from cluster.commands.demo import run

        equal = run(tokens, as_json)
    raise typer.Exit(0 if equal else 1)


@app.command()
def replay(
    answer: Annotated[Path, typer.Argument(help="What `truedraft generate --json` printed.")],
    model: Annotated[
        str | None, typer.Option(help="Model to replay with; by default the one named in the answer.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 for as many as the verifier used.")] = 0,
    as_json: Json = False,
) -> None:
    """Decode a saved answer again on this machine, without drafts; exits with 0 if the tokens are equal."""
    from cluster.commands.replay import run, sentence

    with failures(as_json, bad="BAD_ANSWER"):
        outcome = run(answer, model, threads)
    print(json.dumps(outcome, ensure_ascii=False) if as_json else sentence(outcome))
    raise typer.Exit(0 if outcome["equal"] else 1)


@app.command("train-drafter")
def train_drafter(
    prompts: Annotated[
        Path,
        typer.Option(help="JSON lines with prompt or messages, and an optional domain.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Output folder; an interrupted run resumes from it.")],
    target: Annotated[
        str, typer.Option(help="Target model: packaged name, local directory, GGUF file or hub id.")
    ] = "",
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Training time, once the target has answered the prompts.")
    ] = 30.0,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the drafter.")] = 2,
    block_length: Annotated[int, typer.Option(min=1, max=255, help="Draft tokens per block.")] = 4,
    vocabulary: Annotated[
        int, typer.Option(min=0, help="Size of the draft vocabulary: the most frequent tokens; 0 for all.")
    ] = 8192,
    answer_tokens: Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")] = 160,
    start: Annotated[
        str,
        typer.Option(
            help="Train this drafter of the target further: smollm2-135m-dflash, folder or hub id; "
            "it keeps its layers, block length and draft vocabulary."
        ),
    ] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, or cuda:1.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train a DFlash 2 drafter for a target on its own answers to your prompts."""
    with failures(as_json, stopped="stopped; the same command goes on from here"):
        from cluster.commands.train_drafter import run
        from drafter_service.training.run import Wanted

        shape = Wanted(target, layers, block_length + 1, vocabulary, device, start)
        run(prompts, out, shape, minutes, answer_tokens, as_json)


@app.command()
def plan(
    block: Annotated[int, typer.Option(help="Draft tokens per round.")] = 5,
    acceptance: Annotated[float, typer.Option(help="Acceptance probability of a draft token.")] = 0.7,
    draft_ms: Annotated[float, typer.Option(help="Time per draft token on a drafter's GPU.")] = 2.0,
    own_draft_ms: Annotated[float, typer.Option(help="Time per draft token on the verifier's GPU.")] = 1.5,
    verify_ms: Annotated[
        float, typer.Option(help="Time of a step that verifies a block per sequence.")
    ] = 30.0,
    plain_ms: Annotated[float, typer.Option(help="Time of a step without drafts.")] = 25.0,
    round_trip_ms: Annotated[float, typer.Option(help="Round trip between verifier and drafter.")] = 1.0,
    batch: Annotated[int, typer.Option(help="Sequences per verify step.")] = 32,
    draft_batch: Annotated[int, typer.Option(help="Sequences per drafting step.")] = 16,
    verifier_price: Annotated[float, typer.Option(help="Dollars per hour of a verifier's GPU.")] = 4.0,
    drafter_price: Annotated[float, typer.Option(help="Dollars per hour of a drafter's GPU.")] = 0.8,
    picture: Annotated[
        Path | None, typer.Option(help="Draw cost and speed to this file, .svg or .png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate what drafters on cheap GPUs cost and save; the default prices and times are examples."""
    from cluster.bench.economy.costs import Economy
    from cluster.bench.economy.report import as_dict, draw, render

    with failures(as_json):
        given = Economy(
            block,
            acceptance,
            draft_ms,
            own_draft_ms,
            verify_ms,
            plain_ms,
            round_trip_ms,
            batch,
            draft_batch,
            verifier_price,
            drafter_price,
        )
    with failures(as_json, bad="BAD_PICTURE"):
        Output(as_json, picture=picture).give(as_dict(given), partial(render, given), partial(draw, given))


@app.command()
def lab(
    picture: Annotated[Path | None, typer.Option(help="Draw the table to this file, .svg or .png.")] = None,
    as_json: Json = False,
) -> None:
    """Compute exactly, on small vocabularies, which scheduling rules leave each law's output unchanged."""
    from cluster.lab.report import run

    with failures(as_json, bad="BAD_PICTURE"):
        as_expected = run(Output(as_json, picture=picture))
    raise typer.Exit(0 if as_expected else 1)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
