"""Puts a benchmark together: loads the models, starts the cluster, and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cluster.app import running
from cluster.bench import speed
from cluster.bench.contestants import Cluster, Contestant, InProcess, Transformers
from cluster.bench.machine import measure, weight_bytes
from cluster.checkpoints import load_model
from cluster.client import Client
from cluster.config import load_config
from cluster.speculation.law import COUPLED, NONE
from verifier_service.build import load_target

_LOOKUP_TOKENS = 10


def run_speed(model: str | None, tokens: int, pairs: int, out: Path | None, as_json: bool) -> None:
    """`truedraft bench speed`. Raises StartError when the cluster does not come up."""
    overrides = ["emulation.enabled=true", "gateway.grpc_port=0", "gateway.http_port=0"]
    config = load_config(None, overrides, {"model": model} if model else None)
    spec = config.verifier_spec()
    loaded = load_target(spec)
    stock = load_model(loaded.checkpoint, spec.dtype, spec.device)
    machine, weights = measure(), weight_bytes(list(stock.parameters()))
    with running(config) as cluster, Client(cluster.grpc_address) as client, _progress() as say:
        contestants: list[Contestant] = [
            Transformers(stock, loaded),
            Transformers(stock, loaded, lookup=_LOOKUP_TOKENS),
            InProcess(loaded, spec, NONE),
            InProcess(loaded, spec, COUPLED),
            Cluster(client, NONE),
            Cluster(client, COUPLED),
        ]
        timings = speed.measure(contestants, tokens, pairs, say)
    report = speed.as_json(timings, machine, weights)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        speed.render(timings, machine, weights, Console())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being timed."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Drawn only when told to: a thread that redraws would be timed as well.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting")

        def say(what: str) -> None:
            progress.update(task, description=what)
            progress.refresh()

        yield say
