"""The `truedraft` command.

Modules that take seconds to import (torch, Ray) are imported by the commands that need them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from cluster.bench.cli import bench
from cluster.client import Answer, Ask, Client, RequestFailedError, as_dict, provenance_block, take
from cluster.command import Json, fail, failures
from cluster.output import Output

app = typer.Typer(
    help="Speculative serving that says what it served.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(bench, name="bench")

# A verifier that is lost takes some seconds to be replaced.
_RETRIES = 5


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
def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file with the configuration.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Set one field; repeatable.")
    ] = None,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Start Ray nodes here, labelled as a head, an L4 and an H100 node."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="Packaged name, local directory or hub id.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="ngram, causal_lm, off, or the folder or hub id of a DFlash drafter.")
    ] = None,
    block_length: Annotated[int | None, typer.Option(help="Drafts a round.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate chain for the stream between verifiers and drafters, PEM."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Who may sign the other side's certificate, PEM.")
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext-drafts", help="Let drafts cross the network without TLS.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="YAML file of tenants and the hashes of their API keys.")
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Let in whoever reaches the gateway, without a key.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the cluster and keep it up until Ctrl-C or SIGTERM."""
    from cluster.config import ConfigError, load_config

    flags: dict[str, Any] = {}
    if emulate:
        flags["emulation.enabled"] = True
    if model is not None:
        flags["model"] = model
    if drafter is not None:
        flags |= _drafter_flags(drafter)
    if block_length is not None:
        flags["verifier.block_length"] = block_length
    if plaintext:
        flags["channel.plaintext"] = True
    if anonymous:
        flags["gateway.anonymous"] = True
    if keys is not None:
        flags["gateway.keys_file"] = keys.absolute()
    for name, path in {"certificate": tls_cert, "private_key": tls_key, "authority": tls_ca}.items():
        if path is not None:
            # Replicas have working directories of their own.
            flags[f"channel.{name}"] = path.absolute()
    try:
        loaded = load_config(config, override or (), flags)
    except ConfigError as error:
        fail("INVALID_CONFIG", str(error), as_json, 2)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print("starting; the first start downloads the model", file=sys.stderr, flush=True)
    from cluster.app import Running, StartError, running

    def ready(cluster: Running, out: TextIO) -> None:
        replicas = [
            replica for name in ("gateway", "verifier", "drafter") for replica in cluster.replicas(name)
        ]
        if as_json:
            line = {
                "grpc": cluster.grpc_address,
                "http": cluster.http_address,
                "model": loaded.served_name,
                "laws": loaded.laws.served,
                "replicas": [
                    {
                        "deployment": each.deployment,
                        "replica": each.replica,
                        "pid": each.pid,
                        "labels": each.labels,
                    }
                    for each in replicas
                ],
                "pid": os.getpid(),
            }
            print(json.dumps(line), file=out, flush=True)
            return
        for each in replicas:
            labels = ", ".join(f"{k}={v}" for k, v in each.labels.items() if k != "ray.io/node-id")
            print(f"{each.deployment:<9} {each.replica}  on {labels or 'a node without labels'}", file=out)
        ending = f"{loaded.served_name} answers gRPC at {cluster.grpc_address}; Ctrl-C stops it"
        print(ending, file=out, flush=True)

    try:
        # Ray prints what befalls its workers to standard output, which is ours.
        out = sys.stdout
        with redirect_stdout(sys.stderr), running(loaded) as cluster:
            ready(cluster, out)
            threading.Event().wait()
    except StartError as error:
        fail("START_FAILED", str(error), as_json, 1)
    except (KeyboardInterrupt, SystemExit):
        print("stopped", file=sys.stderr)


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; from standard input if absent or -.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="host:port of the gateway.")] = "127.0.0.1:9000",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Without the model's chat template.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the smallest set that reaches this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens of this share of the largest probability.")
    ] = None,
    typical_p: Annotated[
        float | None, typer.Option(help="Keep the tokens of most usual surprise that reach this probability.")
    ] = None,
    eta_cutoff: Annotated[
        float | None, typer.Option(help="Keep tokens of this probability, or less where many are likely.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens of prompt and answer come less often.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Taken off a token's logit for each time it was in the answer.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken off the logits of tokens that are in the answer.")
    ] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="Does not occur; repeatable.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="The fewest tokens to answer with.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens to answer with.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; repeatable.")] = None,
    stop_token: Annotated[list[int] | None, typer.Option(help="End before this token; repeatable.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="The model's own ends are tokens like others.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Repeats an answer.")] = None,
    law: Annotated[str, typer.Option(help="Verification law; by default the deployment's.")] = "",
    law_param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of the law; repeatable.")
    ] = None,
    model: Annotated[str, typer.Option(help="The served model's name.")] = "",
    domain: Annotated[str, typer.Option(help="Label for acceptance statistics.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a running cluster; the answer goes to standard output, its provenance to standard error."""
    if prompt is None or prompt == "-":
        prompt = sys.stdin.read()
    if raw and system:
        fail("INVALID_ARGUMENT", "--system needs the chat template, which --raw leaves out.", as_json, 2)
    try:
        law_params = _law_params(law_param or ())
    except ValueError as error:
        fail("INVALID_ARGUMENT", str(error), as_json, 2)
    turns = [("system", system)] if system else []
    ask = Ask(
        prompt=prompt if raw else "",
        messages=[] if raw else [*turns, ("user", prompt)],
        model=model,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        eta_cutoff=eta_cutoff,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        bad_words=bad_word or (),
        min_tokens=min_tokens,
        stop_token_ids=stop_token or (),
        ignore_eos=ignore_eos,
        max_tokens=max_tokens,
        stop=stop or (),
        seed=seed,
        law=law,
        law_params=law_params,
        domain=domain,
    )
    answer = Answer()
    from cluster.telemetry.client import client_span

    try:
        with (
            client_span() as traceparent,
            Client(endpoint, retries=_RETRIES, api_key=os.environ.get("TRUEDRAFT_API_KEY", "")) as client,
        ):
            for response in client.stream(ask, traceparent):
                take(answer, response)
                if not as_json:
                    sys.stdout.write(response.delta.text)
                    sys.stdout.flush()
    except RequestFailedError as error:
        if answer.text and not as_json:
            print()
        bad = error.code in ("INVALID_ARGUMENT", "PERMISSION_DENIED")
        fail(error.code, str(error), as_json, 2 if bad else 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if answer.final is None:
        fail("DATA_LOSS", "The stream ended without an answer.", as_json, 1)
    if as_json:
        print(json.dumps(as_dict(answer, ask), ensure_ascii=False))
    else:
        print()
        print(provenance_block(answer.final), file=sys.stderr)


@app.command()
def demo(
    tokens: Annotated[int, typer.Option(min=8, help="The most tokens of each answer.")] = 64,
    as_json: Json = False,
) -> None:
    """Start a cluster on this machine, ask it five things, and show the evidence."""
    print("starting; the first start downloads the model", file=sys.stderr, flush=True)
    with failures(as_json):
        from cluster.demo import run

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
    from cluster.replay import run, sentence

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
    target: Annotated[str, typer.Option(help="Packaged name, local directory or hub id.")] = "",
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
        from cluster.train_drafter import run

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


def _drafter_flags(drafter: str) -> dict[str, object]:
    """What `--drafter` sets: a kind, off, or a checkpoint of a block-diffusion drafter."""
    if drafter == "off":
        return {"drafter.mode": "off"}
    folder = Path(drafter).expanduser()
    if folder.is_dir():
        # Replicas have working directories of their own.
        return {"drafter.kind": "dflash", "drafter.model": str(folder.absolute())}
    if "/" in drafter:
        return {"drafter.kind": "dflash", "drafter.model": drafter}
    return {"drafter.kind": drafter}


def _law_params(given: Sequence[str]) -> dict[str, float]:
    """Raises ValueError, a sentence, for what is not NAME=NUMBER or is given twice."""
    params: dict[str, float] = {}
    for each in given:
        name, equals, text = each.partition("=")
        try:
            value = float(text)
        except ValueError:
            equals = ""
            value = 0.0
        if not name or not equals:
            raise ValueError(f"--law-param takes NAME=NUMBER, got {each!r}.")
        if name in params:
            raise ValueError(f"--law-param {name} is given twice.")
        params[name] = value
    return params


def main() -> None:
    app()


if __name__ == "__main__":
    main()
