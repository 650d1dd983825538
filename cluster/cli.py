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
    """Start a cluster on this machine, ask it five things, and show the evidence."""
    print("starting; the first start downloads the model", file=sys.stderr, flush=True)
    with failures(as_json):
        from cluster.commands.demo import run

        equal = run(tokens, as_json)
    raise typer.Exit(0 if equal else 1)


@app.command()
def replay(
    answer: Annotated[Path, typer.Argument(help="What `truedraft generate --json` printed.")],
    model: Annotated[str | None, typer.Option(help="The answer's model, if its name does not say.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 for as many as served it.")] = 0,
    as_json: Json = False,
) -> None:
    """Decode a saved answer again, here, without drafts and with its seed; 0 if the tokens are the same."""
    from cluster.commands.replay import run, sentence

    with failures(as_json, bad="BAD_ANSWER"):
        outcome = run(answer, model, threads)
    print(json.dumps(outcome, ensure_ascii=False) if as_json else sentence(outcome))
    raise typer.Exit(0 if outcome["equal"] else 1)


@app.command("train-drafter")
def train_drafter(
    prompts: Annotated[
        Path, typer.Option(help="JSON lines: prompt or messages, and perhaps domain.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the drafter; what was begun there is gone on with.")],
    target: Annotated[str, typer.Option(help="Packaged name, local directory or GGUF file, or hub id.")] = "",
    minutes: Annotated[float, typer.Option(min=0.01, help="Of training, once the answers are there.")] = 30.0,
    layers: Annotated[int, typer.Option(min=1, help="Of the drafter.")] = 2,
    block_length: Annotated[int, typer.Option(min=1, max=255, help="Drafts of a block.")] = 7,
    vocabulary: Annotated[
        int, typer.Option(min=0, help="Tokens that it can draft, the likeliest; 0 for all.")
    ] = 8192,
    answer_tokens: Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")] = 160,
    device: Annotated[str, typer.Option(help="cpu, cuda, or cuda:1.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train a DFlash drafter for a target on its own answers to your prompts."""
    with failures(as_json, stopped="stopped; the same command goes on from here"):
        from cluster.commands.train_drafter import run

        run(prompts, out, target, minutes, layers, block_length, vocabulary, answer_tokens, device, as_json)


@app.command()
def plan(
    block: Annotated[int, typer.Option(help="Drafts a round.")] = 5,
    acceptance: Annotated[float, typer.Option(help="Chance that a draft is kept.")] = 0.7,
    draft_ms: Annotated[float, typer.Option(help="Of a drafted token on a drafter's GPU.")] = 2.0,
    own_draft_ms: Annotated[float, typer.Option(help="The same on the verifier's GPU.")] = 1.5,
    verify_ms: Annotated[float, typer.Option(help="Of a step of the batch with its blocks.")] = 30.0,
    plain_ms: Annotated[float, typer.Option(help="Of a step without drafts.")] = 25.0,
    round_trip_ms: Annotated[float, typer.Option(help="Between verifier and drafter.")] = 1.0,
    batch: Annotated[int, typer.Option(help="Sequences of a verifier's step.")] = 32,
    draft_batch: Annotated[int, typer.Option(help="Sequences that a drafter drafts for at once.")] = 16,
    verifier_price: Annotated[float, typer.Option(help="Dollars per GPU and hour.")] = 4.0,
    drafter_price: Annotated[float, typer.Option(help="Dollars per GPU and hour.")] = 0.8,
    picture: Annotated[
        Path | None, typer.Option(help="Draw cost and speed to this file, .svg or .png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What drafters on cheap GPUs cost and save, from prices and measured times; defaults are examples."""
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
    """Compute, exactly and on small vocabularies, which rules leave the output law alone and which do not."""
    from cluster.lab.report import run

    with failures(as_json, bad="BAD_PICTURE"):
        as_expected = run(Output(as_json, picture=picture))
    raise typer.Exit(0 if as_expected else 1)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
