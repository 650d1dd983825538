"""Puts `truedraft bench speed` and `bench int8` together: loads models, starts the cluster, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.app import running
from cluster.bench.machine import Machine, measure, weight_bytes
from cluster.bench.speed import measuring as speed
from cluster.bench.speed.apart import apart
from cluster.bench.speed.contestants import Cluster, Contestant, in_process, plain, stock
from cluster.checkpoints import load_model, resolve
from cluster.client import Client
from cluster.config import load_config
from cluster.speculation.law import COUPLED, NONE
from cluster.terminal import Output, progress
from verifier_service.spec import INT8, VerifierSpec

# A prompt that comes again is computed again, as transformers does.
COMPUTED_AGAIN = "verifier.prefix_caching=false"


def run_speed(model: str | None, tokens: int, pairs: int, output: Output) -> None:
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
    _give(timings, machine, weights, output)


def run_integers(model: str | None, tokens: int, pairs: int, output: Output) -> None:
    """`truedraft bench int8`. Raises CheckpointError; ValueError where weights in int8 cannot run."""
    spec = load_config(None, [COMPUTED_AGAIN], {"model": model} if model else None).verifier_spec()
    machine, weights = measure(), _weight_bytes(spec)
    with (
        apart(plain, spec) as floats,
        apart(plain, replace(spec, dtype=INT8)) as integers,
        progress() as say,
    ):
        timings = speed.measure([*floats, *integers], tokens, pairs, say)
    _give(timings, machine, weights, output)


def _give(timings: Sequence[speed.Timing], machine: Machine, weights: int, output: Output) -> None:
    figures = speed.as_json(timings, machine, weights)
    output.give(figures, lambda console: speed.render(timings, machine, weights, console))


def _weight_bytes(spec: VerifierSpec) -> int:
    """What one decoding step reads at least."""
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    return weight_bytes(list(load_model(checkpoint, spec.dtype, spec.device).parameters()))
