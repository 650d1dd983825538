"""`truedraft serve`: a cluster, until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from cluster.terminal import Json, fail


def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file with the configuration.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Set one field; repeatable.")
    ] = None,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Start Ray nodes here, labelled as a head, an L4 and an H100 node."),
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Packaged name, local directory or GGUF file, or hub id.")
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="ngram, causal_lm, off, or a DFlash drafter: smollm2-135m-dflash, folder or hub id."
        ),
    ] = None,
    block_length: Annotated[int | None, typer.Option(help="Draft tokens per round, at most.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate chain for the traffic between verifiers and drafters, PEM."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Certificate authority that signs both sides, PEM.")
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext-drafts", help="Send drafts over the network without TLS.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="YAML file of tenants and the hashes of their API keys.")
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Accept requests without an API key from anywhere.")
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
        # Ray reports failures of its workers on standard output, where only our own lines belong.
        out = sys.stdout
        with redirect_stdout(sys.stderr), running(loaded) as cluster:
            ready(cluster, out)
            threading.Event().wait()
    except StartError as error:
        fail("START_FAILED", str(error), as_json, 1)
    except (KeyboardInterrupt, SystemExit):
        print("stopped", file=sys.stderr)


def _drafter_flags(drafter: str) -> dict[str, object]:
    """What `--drafter` sets: a kind, off, or a checkpoint of a block-diffusion drafter."""
    if drafter == "off":
        return {"drafter.mode": "off"}
    folder = Path(drafter).expanduser()
    if folder.is_dir():
        # Replicas have working directories of their own.
        return {"drafter.kind": "dflash", "drafter.model": str(folder.absolute())}
    # Takes seconds to import.
    from cluster.drafting.drafter_checkpoints import SHIPPED

    if "/" in drafter or drafter == SHIPPED:
        return {"drafter.kind": "dflash", "drafter.model": drafter}
    return {"drafter.kind": drafter}
