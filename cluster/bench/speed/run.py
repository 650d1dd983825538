"""Puts a benchmark together: loads the models, starts the cluster, and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cluster.app import running
from cluster.bench.machine import Machine, measure, weight_bytes
from cluster.bench.speed import measuring as speed
from cluster.bench.speed.apart import apart
from cluster.bench.speed.contestants import Cluster, Contestant, in_process, plain, stock
from cluster.checkpoints import load_model, resolve
from cluster.client import Client
from cluster.config import load_config
from cluster.speculation.law import COUPLED, NONE
from verifier_service.spec import INT8, VerifierSpec

# A prompt that comes again is computed again, as transformers does.
COMPUTED_AGAIN = "verifier.prefix_caching=false"


def run_speed(model: str | None, tokens: int, pairs: int, out: Path | None, as_json: bool) -> None:
    """`truedraft bench speed`. Raises StartError when the cluster does not come up."""
    overrides = [COMPUTED_AGAIN, "emulation.enabled=true", "gateway.grpc_port=0", "gateway.http_port=0"]
    config = load_config(None, overrides, {"model": model} if model else None)
    spec = config.verifier_spec()
    machine, weights = measure(), _weight_bytes(spec)
    with (
        apart(stock, spec) as transformers,
        apart(in_process, spec) as ours,
        running(config) as cluster,
        Client(cluster.grpc_address) as client,
        progress() as say,
    ):
        contestants: list[Contestant] = [
            *transformers,
            *ours,
            Cluster(client, NONE),
            Cluster(client, COUPLED),
        ]
        timings = speed.measure(contestants, tokens, pairs, say)
    _report(timings, machine, weights, out, as_json)


def run_integers(model: str | None, tokens: int, pairs: int, out: Path | None, as_json: bool) -> None:
    """`truedraft bench int8`. Raises CheckpointError; ValueError where weights in int8 cannot run."""
    spec = load_config(None, [COMPUTED_AGAIN], {"model": model} if model else None).verifier_spec()
    machine, weights = measure(), _weight_bytes(spec)
    with (
        apart(plain, spec) as floats,
        apart(plain, replace(spec, dtype=INT8)) as integers,
        progress() as say,
    ):
        timings = speed.measure([*floats, *integers], tokens, pairs, say)
    _report(timings, machine, weights, out, as_json)


def _report(
    timings: Sequence[speed.Timing], machine: Machine, weights: int, out: Path | None, as_json: bool
) -> None:
    report = speed.as_json(timings, machine, weights)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        speed.render(timings, machine, weights, Console())


def _weight_bytes(spec: VerifierSpec) -> int:
    """What one decoding step reads at least."""
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    return weight_bytes(list(load_model(checkpoint, spec.dtype, spec.device).parameters()))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being timed."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Drawn only when told to: a thread that redraws would be timed as well.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting")

        def say(what: str) -> None:
            progress.update(task, description=what)
            progress.refresh()

        yield say
