"""The commands under `truedraft bench`. What they measure takes seconds to import and is imported by each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.terminal import Json, Output, failures

bench = typer.Typer(help="Measure, side by side with what you would use instead.", no_args_is_help=True)

Model = Annotated[str | None, typer.Option(help="Packaged name, local directory or GGUF file, or hub id.")]
Tokens = Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")]
Pairs = Annotated[int, typer.Option(min=1, help="Repetitions; fewer than 7 resolve little.")]
Minutes = Annotated[float, typer.Option(help="Begin nothing new after so long.")]
Out = Annotated[Path | None, typer.Option(help="Write every figure to this file, as JSON.")]
SoFar = Annotated[Path, typer.Option(help="What was found so far; a run goes on from there.")]
Picture = Annotated[Path | None, typer.Option(help="Draw them to this file, .svg or .png.")]


@bench.command()
def int8(
    tokens: Tokens = 64, pairs: Pairs = 7, model: Model = None, out: Out = None, as_json: Json = False
) -> None:
    """Plain decoding with weights in int8 against the same in float32, one request at a time."""
    with failures(as_json):
        from cluster.bench.speed.run import run_integers

        run_integers(model, tokens, pairs, Output(as_json, out))


@bench.command()
def speed(
    tokens: Tokens = 64, pairs: Pairs = 7, model: Model = None, out: Out = None, as_json: Json = False
) -> None:
    """Cluster and engine against transformers generate and prompt lookup, one request at a time."""
    with failures(as_json):
        from cluster.bench.speed.run import run_speed

        run_speed(model, tokens, pairs, Output(as_json, out))


@bench.command()
def peers(
    vllm: Annotated[Path, typer.Option(help="vLLM's command; `make peers` installs it.")] = Path(
        ".venv-vllm/bin/vllm"
    ),
    concurrent: Annotated[list[int] | None, typer.Option(min=2, help="At a time; repeatable.")] = None,
    tokens: Tokens = 32,
    pairs: Pairs = 7,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Cluster and engine against transformers and vLLM, one request at a time and many."""
    with failures(as_json, bad="BAD_PICTURE"):
        from cluster.bench.peers.run import run_peers

        run_peers(model, vllm, concurrent or (4, 16, 64), tokens, pairs, Output(as_json, out, picture))


@bench.command()
def lossy(
    positions: Annotated[int, typer.Option(min=10, help="Positions of text, looked at exactly.")] = 300,
    checked: Annotated[int, typer.Option(min=1, help="Positions that are sampled as well.")] = 6,
    draws: Annotated[int, typer.Option(min=100, help="Samples at each of them.")] = 1000,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of drafting, for acceptance lengths.")] = 150,
    samples: Annotated[int, typer.Option(min=1, help="Answers to every task under every law.")] = 3,
    tokens: Tokens = 64,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """What lossy laws emit, against the strict way to the same: distances, acceptance, answers."""
    with failures(as_json, bad="BAD_PICTURE"):
        from cluster.bench.lossy.report import Size
        from cluster.bench.lossy.run import run_lossy

        run_lossy(
            model, Size(positions, checked, draws, rounds, samples, tokens), Output(as_json, out, picture)
        )


@bench.command()
def domains(
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="ngram, a DFlash checkpoint, or a causal language model; repeatable."),
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(min=0, help="Repeatable; 0, 0.7 and 1 unless given.")
    ] = None,
    per_domain: Annotated[int, typer.Option(min=1, help="Prompts of each domain.")] = 16,
    timed: Annotated[int, typer.Option(min=0, help="Of these, how many are timed; 0 times none.")] = 4,
    tokens: Tokens = 96,
    block_length: Annotated[int, typer.Option(min=1, max=64, help="Drafts of a round.")] = 7,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own: JSON lines of prompt or messages, and domain.")
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(help="Your tokens by domain: CSV, or what the gateway's /metrics said.")
    ] = None,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """What each drafter is worth by domain: acceptance, and tokens per second against speculation off."""
    with failures(as_json):
        from cluster.bench.domains.report import Size
        from cluster.bench.domains.run import run_domains

        size = Size(per_domain, timed, tokens, block_length, tuple(temperature or (0.0, 0.7, 1.0)))
        run_domains(model, drafter or ["ngram"], size, prompts, traffic, Output(as_json, out, picture))


@bench.command()
def overhead(
    tokens: Tokens = 96,
    pairs: Annotated[int, typer.Option(min=1, help="Repetitions; fewer than 30 resolve little.")] = 30,
    minutes: Minutes = float("inf"),
    model: Model = None,
    out: SoFar = Path("bench-results/overhead.jsonl"),
    as_json: Json = False,
) -> None:
    """What traces, metrics and audits cost of the throughput."""
    with failures(as_json):
        from cluster.bench.overhead.run import run_overhead

        met = run_overhead(model, tokens, pairs, minutes, out, as_json)
    raise typer.Exit(0 if met else 1)


@bench.command()
def audit(
    honest: Annotated[int, typer.Option(min=1, help="Tokens without a fault, under each law.")] = 100_000,
    faulty: Annotated[int, typer.Option(min=1, help="Tokens with each planted fault.")] = 20_000,
    layers: Annotated[int, typer.Option(min=2, help="Of the model that the drafter keeps.")] = 20,
    minutes: Minutes = float("inf"),
    model: Model = None,
    out: SoFar = Path("bench-results/audit.jsonl"),
    as_json: Json = False,
) -> None:
    """How many tokens live audits need to find a planted fault, and that they are silent without one."""
    with failures(as_json):
        from cluster.bench.audit.run import run_audit

        as_expected = run_audit(model, layers, out, minutes, honest, faulty, as_json)
    raise typer.Exit(0 if as_expected else 1)


@bench.command()
def step(
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of the step.")] = 16,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each, one more than it has drafts.")] = 9,
    law: Annotated[list[str] | None, typer.Option(help="coupled, rejection or block; repeatable.")] = None,
    vocab: Annotated[
        int | None, typer.Option(min=2, help="Without a model: random logits of so many tokens.")
    ] = None,
    context: Annotated[int, typer.Option(min=16, help="Tokens before the step.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each part is timed.")] = 9,
    model: Model = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Where one verify step's time goes, against its forward and the reading of the weights."""
    with failures(as_json):
        from cluster.bench.step.run import Shape, run_step

        run_step(model, Shape(sequences, rows, vocab, context, repeats), law or (), Output(as_json, out))


@bench.command()
def network(
    tokens: Tokens = 48,
    pairs: Pairs = 7,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """What a round trip between verifier and drafter costs of the throughput, and what of it is hidden."""
    with failures(as_json):
        from cluster.bench.network.run import run_network

        met = run_network(model, tokens, pairs, Output(as_json, out, picture))
    raise typer.Exit(0 if met else 1)


@bench.command()
def load(
    tokens: Tokens = 32,
    pairs: Pairs = 7,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Speculation against none with 1 to 64 requests at a time, and its lengths against fixed ones."""
    with failures(as_json):
        from cluster.bench.load.run import run_load

        met = run_load(model, tokens, pairs, Output(as_json, out, picture))
    raise typer.Exit(0 if met else 1)
