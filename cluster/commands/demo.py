"""`truedraft demo`: a cluster on this machine, five questions, and the evidence under each answer."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cluster.app import Running, running
from cluster.bench.prompts import KINDS
from cluster.client import Answer, Ask, Client, as_dict, provenance_block, take
from cluster.config import ACCELERATOR_LABEL, load_config
from cluster.drafting.drafter_checkpoints import SHIPPED
from cluster.telemetry.setup import TRACE_DIR
from cluster.telemetry.tree import load_spans, render

_TEMPERATURES = (0.0, 0.8)
_SEED = 7
# Spans are exported in batches, each process by itself.
_TRACE_PATIENCE_S = 10.0
_SERVICES = {"truedraft-gateway", "truedraft-verifier", "truedraft-drafter"}
# The shipped drafter in the drafter pool, n-grams inside the verifiers: each request is given the better one.
SETTINGS = (
    "emulation.enabled=true",
    "gateway.grpc_port=0",
    "gateway.http_port=0",
    "drafter.mode=both",
    "drafter.kind=dflash",
    f"drafter.model={SHIPPED}",
)


def run(tokens: int, as_json: bool) -> bool:
    """Starts the cluster, asks, compares with plain decoding, draws a trace, and stops.

    tokens: the most of each answer. Returns whether speculation left every token as it was. Raises
    StartError when the cluster does not come up.
    """
    # With --json the story is told on standard error and the object stands alone.
    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="truedraft-traces-") as directory:
        # Inherited by the replicas, which append their spans to files of this folder.
        os.environ[TRACE_DIR] = directory
        config = load_config(None, list(SETTINGS))
        console.print(Rule(f"starting {config.served_name} on emulated L4 and H100 nodes"))
        began = time.monotonic()
        with running(config) as cluster, Client(cluster.grpc_address) as client:
            console.print(f"up after {time.monotonic() - began:.0f} s, gRPC on {cluster.grpc_address}")
            console.print(_placement(cluster))
            results = [
                _ask(client, kind, temperature, tokens, console)
                for kind in KINDS
                for temperature in _TEMPERATURES
            ]
            _show_trace(Path(directory), _telling([each["provenance"] for each in results]), console)
        console.print(Rule("stopped"))
    different = sum(not result["equal_to_plain_decoding"] for result in results)
    sentence = (
        f"{len(results)} answers, each decoded again with speculation off and the same seed: "
        f"{len(results) - different} equal token for token, {different} different"
    )
    console.print(sentence, style="bold red" if different else "bold green")
    if as_json:
        sys.stdout.write(json.dumps({"answers": results, "different": different}, ensure_ascii=False) + "\n")
    return different == 0


def _placement(cluster: Running) -> Table:
    """Where Ray says that each replica runs."""
    table = Table("deployment", "replica", "node labelled", title="Placement, as Ray reports it")
    for deployment in ("gateway", "verifier", "drafter"):
        for replica in cluster.replicas(deployment):
            label = replica.labels.get(ACCELERATOR_LABEL, "no accelerator")
            table.add_row(deployment, replica.replica, label)
    return table


def _ask(client: Client, kind: str, temperature: float, tokens: int, console: Console) -> dict[str, Any]:
    ask = Ask(
        messages=[("user", KINDS[kind])], temperature=temperature, seed=_SEED, max_tokens=tokens, domain=kind
    )
    console.print(Rule(f"{kind}, T = {temperature:g}", align="left"))
    console.print(Text(KINDS[kind]), style="dim")
    traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    answer, seconds = _stream(client, ask, traceparent, lambda text: console.print(Text(text), end=""))
    console.print()
    assert answer.final is not None
    console.print(Text(provenance_block(answer.final)), style="cyan")
    plain, plain_seconds = _stream(client, replace(ask, law="none"), "", lambda text: None)
    equal = answer.token_ids == plain.token_ids
    console.print(
        f"speculation off, same seed: tokens {'equal' if equal else 'DIFFERENT'}; "
        f"{len(answer.token_ids) / seconds:.1f} against {len(plain.token_ids) / plain_seconds:.1f} tokens/s",
        style="green" if equal else "bold red",
    )
    measured = {"seconds": round(seconds, 3), "seconds_without_speculation": round(plain_seconds, 3)}
    described = {"kind": kind, "temperature": temperature, "equal_to_plain_decoding": equal}
    return {**described, **measured, **as_dict(answer, ask)}


def _stream(client: Client, ask: Ask, traceparent: str, show: Callable[[str], None]) -> tuple[Answer, float]:
    answer, began = Answer(), time.perf_counter()
    for response in client.stream(ask, traceparent):
        take(answer, response)
        show(response.delta.text)
    return answer, time.perf_counter() - began


def _telling(provenances: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the answer whose trace says most: with most drafts accepted, among those of the shipped drafter."""
    remote = [each for each in provenances if _drafted_remotely(each)]
    return max(remote or provenances, key=lambda each: int(each["accepted_tokens"]))


def _drafted_remotely(provenance: dict[str, Any]) -> bool:
    return any(each["model"] == SHIPPED for each in provenance.get("drafters", ()))


def _show_trace(directory: Path, provenance: dict[str, Any], console: Console) -> None:
    """Draws the trace once every service has written its part of it."""
    trace_id = provenance["trace_id"]
    awaited = _SERVICES if _drafted_remotely(provenance) else _SERVICES - {"truedraft-drafter"}
    deadline = time.monotonic() + _TRACE_PATIENCE_S
    spans = load_spans(directory, trace_id)
    while {span.service for span in spans} < awaited and time.monotonic() < deadline:
        time.sleep(0.2)
        spans = load_spans(directory, trace_id)
    console.print(Rule("one request's trace"))
    console.print(render(spans))
