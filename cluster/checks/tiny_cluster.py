"""A whole cluster around a tiny random model, which is fast enough to be asked thousands of times."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.app import Running, running
from cluster.checkpoints.tiny import build_tiny
from cluster.config import load_config


@contextmanager
def tiny_cluster(*overrides: str) -> Iterator[Running]:
    """overrides: of the configuration, as `--set` takes them. Raises StartError."""
    with tempfile.TemporaryDirectory() as directory:
        model = build_tiny(Path(directory) / "tiny", seed=1)
        words = [f"model={model}", "gateway.grpc_port=0", "gateway.http_port=0", "verifier.planner=fixed"]
        with running(load_config(None, [*words, "emulation.enabled=true", *overrides])) as cluster:
            yield cluster
