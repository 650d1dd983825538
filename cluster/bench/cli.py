"""The commands under `truedraft bench`. Each imports what it runs, which takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.terminal import Json, Output, failures

bench = typer.Typer(
    help="Measure speed, acceptance, overhead and audits, always against a baseline in the same run.",
    no_args_is_help=True,
)

Model = Annotated[str | None, typer.Option(help="Packaged name, local directory or GGUF file, or hub id.")]
Tokens = Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")]
Pairs = Annotated[int, typer.Option(min=1, help="Repetitions; fewer than 7 leave wide intervals.")]
Minutes = Annotated[float, typer.Option(help="Start no new repetition after this many minutes.")]
Out = Annotated[Path | None, typer.Option(help="Write all figures to this file, as JSON.")]
SoFar = Annotated[Path, typer.Option(help="File of results; a run resumes from it.")]
Picture = Annotated[Path | None, typer.Option(help="Draw the figures to this file, .svg or .png.")]


@bench.command()
def int8(
    tokens: Tokens = 64, pairs: Pairs = 7, model: Model = None, out: Out = None, as_json: Json = False
) -> None:
    """Plain decoding with weights in int8 against float32, one request at a time."""
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
    vllm: Annotated[Path, typer.Option(help="Python that has vLLM; `make peers` installs it.")] = Path(
        ".venv-vllm/bin/python"
    ),
    concurrent: Annotated[
        list[int] | None, typer.Option(min=2, help="Concurrent requests; repeatable.")
    ] = None,
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
    positions: Annotated[
        int, typer.Option(min=10, help="Positions of text that are computed exactly.")
    ] = 300,
    checked: Annotated[int, typer.Option(min=1, help="Positions that are also sampled.")] = 6,
    draws: Annotated[int, typer.Option(min=100, help="Samples at each of these.")] = 1000,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of drafting, for acceptance lengths.")] = 150,
    samples: Annotated[int, typer.Option(min=1, help="Answers per task and law.")] = 3,
    tokens: Tokens = 64,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """What lossy laws emit, against a strict way to the same distribution: distance, acceptance, answers."""
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
        list[float] | None, typer.Option(min=0, help="Repeatable; by default 0, 0.7 and 1.")
    ] = None,
    per_domain: Annotated[int, typer.Option(min=1, help="Prompts per domain.")] = 16,
    timed: Annotated[int, typer.Option(min=0, help="How many of these are timed; 0 for none.")] = 4,
    tokens: Tokens = 96,
    block_length: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens per round.")] = 7,
    block_width: Annotated[int, typer.Option(min=1, max=8, help="Above 1: trees, so wide at most.")] = 1,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own prompts: JSON lines with prompt or messages, and domain.")
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(help="Your tokens by domain: CSV, or the text of the gateway's /metrics.")
    ] = None,
    model: Model = None,
    out: Out = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Acceptance and speedup of each drafter by domain."""
    with failures(as_json):
        from cluster.bench.domains.report import Size
        from cluster.bench.domains.run import run_domains

        temperatures = tuple(temperature or (0.0, 0.7, 1.0))
        size = Size(per_domain, timed, tokens, block_length, temperatures, block_width)
        run_domains(model, drafter or ["ngram"], size, prompts, traffic, Output(as_json, out, picture))


@bench.command()
def overhead(
    tokens: Tokens = 96,
    pairs: Annotated[int, typer.Option(min=1, help="Repetitions; fewer than 30 leave wide intervals.")] = 30,
    minutes: Minutes = float("inf"),
    model: Model = None,
    out: SoFar = Path("bench-results/overhead.jsonl"),
    as_json: Json = False,
) -> None:
    """Throughput lost to traces, metrics and audits."""
    with failures(as_json):
        from cluster.bench.overhead.run import run_overhead

        met = run_overhead(model, tokens, pairs, minutes, out, as_json)
    raise typer.Exit(0 if met else 1)


@bench.command()
def audit(
    honest: Annotated[int, typer.Option(min=1, help="Tokens per law without a fault.")] = 100_000,
    faulty: Annotated[int, typer.Option(min=1, help="Tokens per planted fault.")] = 20_000,
    layers: Annotated[int, typer.Option(min=2, help="Layers of the model that the drafter keeps.")] = 20,
    minutes: Minutes = float("inf"),
    model: Model = None,
    out: SoFar = Path("bench-results/audit.jsonl"),
    as_json: Json = False,
) -> None:
    """How many tokens live audits need to detect planted faults, and their false alarms."""
    with failures(as_json):
        from cluster.bench.audit.run import run_audit

        as_expected = run_audit(model, layers, out, minutes, honest, faulty, as_json)
    raise typer.Exit(0 if as_expected else 1)


@bench.command()
def step(
    sequences: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 16,
    rows: Annotated[int, typer.Option(min=1, help="Rows per sequence: its draft tokens and one.")] = 9,
    law: Annotated[list[str] | None, typer.Option(help="coupled, rejection or block; repeatable.")] = None,
    vocab: Annotated[
        int | None, typer.Option(min=2, help="Use no model, but random logits of a vocabulary of this size.")
    ] = None,
    context: Annotated[int, typer.Option(min=16, help="Tokens of context before the step.")] = 200,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions per part.")] = 9,
    model: Model = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time of a verify step by part, against its forward pass and the memory bandwidth."""
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
    """Throughput lost to round trips between verifier and drafter, and how much of it is hidden."""
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
    """Speculation against plain decoding with 1 to 64 concurrent requests, and fixed block lengths."""
    with failures(as_json):
        from cluster.bench.load.run import run_load

        met = run_load(model, tokens, pairs, Output(as_json, out, picture))
    raise typer.Exit(0 if met else 1)
