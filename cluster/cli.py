"""The `truedraft` command. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.client import Answer, Ask, Client, RequestFailedError, take

app = typer.Typer(
    name="truedraft",
    help="Speculative serving that says what it served.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Measure, side by side with what you would use instead.", no_args_is_help=True)
app.add_typer(bench, name="bench")

_BAD_INPUT, _FAILED = 2, 1

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file; see docs/architecture.md.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a field: verifier.block_length=4. Repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, for machines.")]


@app.command()
def serve(
    config: ConfigFile = None,
    overrides: Overrides = None,
    emulate: Annotated[bool, typer.Option(help="Start Ray nodes on this machine that stand for GPU nodes.")] = False,
    model: Annotated[str | None, typer.Option(help="Packaged name, local directory, or hub id.")] = None,
    drafter: Annotated[str | None, typer.Option(help="ngram, causal_lm, or off.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Drafts a round.")] = None,
    as_json: Json = False,
) -> None:
    """Start the cluster and keep it up until Ctrl-C."""
    flags: dict[str, Any] = {}
    if emulate:
        flags["emulation.enabled"] = True
    if model is not None:
        flags["model"] = model
    if block_length is not None:
        flags["verifier.block_length"] = block_length
    if drafter == "off":
        flags["drafter.mode"] = "off"
    elif drafter is not None:
        flags["drafter.kind"] = drafter
    from cluster.config import ConfigError, load_config

    try:
        configuration = load_config(config, overrides or (), flags)
    except ConfigError as error:
        _fail(str(error), "INVALID_ARGUMENT", as_json)
    from cluster.app import StartError, running
    from cluster.checkpoints import CheckpointError

    over = threading.Event()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _say(f"starting {configuration.served_name}", as_json)
        with running(configuration) as cluster:
            where = {"grpc": cluster.grpc_address, "http": cluster.http_address, "model": configuration.served_name}
            if as_json:
                sys.stdout.write(json.dumps(where) + "\n")
                sys.stdout.flush()
            else:
                _say(f"gRPC on {cluster.grpc_address}; Ctrl-C stops the cluster", as_json)
            over.wait()
    except KeyboardInterrupt:
        _say("stopped", as_json)
    except (StartError, CheckpointError) as error:
        _fail(str(error), "FAILED_PRECONDITION", as_json)


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The question; standard input if left out.")] = None,
    endpoint: Annotated[str, typer.Option(help="host:port of the gateway.")] = "127.0.0.1:9000",
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    raw: Annotated[bool, typer.Option(help="Continue the prompt as it is, without the chat template.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the nucleus of this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens of this share of the largest.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="At most this many tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string. Repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the answer repeatable.")] = None,
    law: Annotated[str, typer.Option(help="coupled or none; the deployment's default if left out.")] = "",
    model: Annotated[str, typer.Option(help="The served model's name.")] = "",
    domain: Annotated[str, typer.Option(help="A label for acceptance statistics.")] = "",
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole answer.")] = None,
    as_json: Json = False,
) -> None:
    """Ask the cluster; the answer on standard output, its provenance on standard error."""
    text = sys.stdin.read() if prompt is None else prompt
    messages = [("system", system)] if system is not None else []
    ask = Ask(
        messages=() if raw else [*messages, ("user", text)],
        prompt=text if raw else "",
        model=model,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        max_tokens=max_tokens,
        stop=stop or (),
        seed=seed,
        law=law,
        domain=domain,
    )
    if raw and system is not None:
        _fail("--system goes through the chat template, which --raw leaves out.", "INVALID_ARGUMENT", as_json)
    from opentelemetry.trace import SpanKind

    from cluster.telemetry import context, setup

    tracer = setup.setup("truedraft-client")
    answer = Answer()
    with tracer.start_as_current_span("truedraft generate", kind=SpanKind.CLIENT) as span:
        try:
            with Client(endpoint, timeout) as client:
                for response in client.stream(ask, context.inject(span)):
                    take(answer, response)
                    if not as_json:
                        sys.stdout.write(response.delta.text)
                        sys.stdout.flush()
        except RequestFailedError as error:
            _fail(str(error), error.code, as_json)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    if as_json:
        sys.stdout.write(json.dumps(_as_dict(answer), ensure_ascii=False) + "\n")
    else:
        from rich.console import Console

        from cluster.report import provenance_lines

        sys.stdout.write("\n")
        console = Console(stderr=True, highlight=False)
        for line in provenance_lines(answer):
            console.print(line, style="dim")


@app.command()
def demo(
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 64,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, ask it five things, and show the evidence."""
    from cluster.demo import run

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = run(tokens, as_json)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


@bench.command()
def speed(
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 64,
    pairs: Annotated[int, typer.Option(min=1, help="Repetitions; fewer than 7 resolve little.")] = 7,
    model: Annotated[str, typer.Option(help="Packaged name, local directory, or hub id.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the measurements to this file, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Cluster and engine against transformers generate and prompt lookup, one request at a time."""
    from cluster.bench.run import run_speed

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run_speed(model, tokens, pairs, out, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def main() -> None:
    """The console script."""
    app()


def _as_dict(answer: Answer) -> dict[str, Any]:
    from cluster.gateway.wire import to_dict
    from truedraft.v1 import inference_pb2 as pb

    assert answer.final is not None
    final = answer.final
    return {
        "id": final.id,
        "model": final.model,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": pb.FinishReason.Name(final.finish_reason).removeprefix("FINISH_REASON_").lower(),
        "usage": {"input_tokens": final.usage.input_tokens, "output_tokens": final.usage.output_tokens},
        "provenance": to_dict(final.provenance),
    }


def _interrupt(number: int, frame: object) -> None:
    # SIGTERM ends things the way Ctrl-C does: through every context manager.
    raise KeyboardInterrupt


def _say(sentence: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(sentence, err=True)


def _fail(sentence: str, code: str, as_json: bool) -> Any:
    """Ends the command with one sentence; exit code 2 for bad input, 1 for everything else."""
    if as_json:
        sys.stdout.write(json.dumps({"error": {"code": code, "message": sentence}}) + "\n")
    else:
        typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(_BAD_INPUT if code == "INVALID_ARGUMENT" else _FAILED)


if __name__ == "__main__":
    main()
