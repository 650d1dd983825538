"""`truedraft generate`: one answer of a running cluster, and its provenance."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cluster.client import Answer, Ask, Client, RequestFailedError, as_dict, provenance_block, take
from cluster.terminal import Json, fail

# A verifier that is lost takes some seconds to be replaced.
_RETRIES = 5


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; read from standard input if absent or -.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="host:port of the gateway.")] = "127.0.0.1:9000",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Send the prompt as it is, without the chat template.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="0 decodes greedily; unset, the deployment's default.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the fewest tokens that together reach this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens with at least this share of the largest probability.")
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(help="Keep the locally typical tokens that together reach this probability."),
    ] = None,
    eta_cutoff: Annotated[
        float | None, typer.Option(help="Keep tokens above this probability, lower where entropy is high.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: makes tokens of prompt and answer less likely.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from a token's logit per occurrence in the answer.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens that occur in the answer.")
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="A word that must not occur; repeatable.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="The fewest tokens of the answer.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens of the answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string; repeatable.")] = None,
    stop_token: Annotated[
        list[int] | None, typer.Option(help="Stop before this token id; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end-of-sequence token.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers; drawn if unset.")] = None,
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
