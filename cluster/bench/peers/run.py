"""Puts the comparison together: our cluster and engine, transformers, and vLLM where it is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cluster.app import running
from cluster.bench.machine import measure as machine
from cluster.bench.peers.endpoint import Endpoint
from cluster.bench.peers.measuring import CLUSTER, PLAIN, loads, measure
from cluster.bench.peers.report import Outcome, as_dict, draw, render
from cluster.bench.peers.vllm import PeerMissingError, vllm
from cluster.bench.speed.apart import apart
from cluster.bench.speed.contestants import in_process, stock, trained
from cluster.bench.speed.peer import Peer, family
from cluster.bench.speed.run import COMPUTED_AGAIN
from cluster.checkpoints import DEFAULT_REFERENCE, resolve
from cluster.config import load_config
from cluster.terminal import Output, progress

_AS_MANY_AS_ASKED = ["gateway.max_ongoing_requests=256", "verifier.max_queued=256"]


def run_peers(
    model: str | None,
    vllm_command: Path,
    concurrent: Sequence[int],
    tokens: int,
    pairs: int,
    output: Output,
) -> None:
    """`truedraft bench peers`. Raises StartError when the cluster does not come up, RuntimeError when a peer
    fails in the middle."""
    overrides = [COMPUTED_AGAIN, "emulation.enabled=true", "gateway.grpc_port=0", "gateway.http_port=0"]
    config = load_config(None, overrides + _AS_MANY_AS_ASKED, {"model": model} if model else None)
    spec = config.verifier_spec()
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    described, missing = machine(), dict[str, str]()
    with ExitStack() as stack:
        say = stack.enter_context(progress())
        peers: list[Peer] = [
            *stack.enter_context(apart(stock, spec)),
            *stack.enter_context(apart(in_process, spec)),
        ]
        if spec.model == DEFAULT_REFERENCE:
            peers += stack.enter_context(apart(trained, spec))
        for name, speculates in (("vLLM", False), ("vLLM n-gram", True)):
            say(f"starting {name}")
            try:
                peers.append(stack.enter_context(vllm(vllm_command, checkpoint.path, spec.dtype, speculates)))
            except PeerMissingError as absence:
                # Said at once: who wanted it need not wait for the end.
                missing[name] = str(absence)
                print(f"{name} does not take part: {absence}", file=sys.stderr)
        # Ray's processes are children of this one, as are the peers so far.
        others = family(os.getpid())
        say("starting the cluster")
        cluster = stack.enter_context(running(config))
        url = f"http://{cluster.http_address}"
        peers += [
            Endpoint(name, url, config.served_name, os.getpid(), others, {"truedraft": {"law": law}})
            for name, law in ((PLAIN, "none"), (CLUSTER, "coupled"))
        ]
        measured = measure(peers, loads(concurrent), tokens, pairs, say)
        memory = {peer.name: peer.memory() for peer in peers}
    outcome = Outcome(described, spec.model, tokens, measured, memory, missing)
    output.give(as_dict(outcome), lambda console: render(outcome, console), lambda path: draw(outcome, path))
