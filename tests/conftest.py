"""What tests share: one emulated cluster for the whole session."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cluster.client import Client
from tests.telemetry.otlp_receiver import OtlpReceiver, receiving
from truedraft.v1 import inference_pb2_grpc

if TYPE_CHECKING:
    # Takes seconds to import, and few tests need it.
    from cluster.app import Running


# Byte that freed memory is filled with, and M_PERTURB of mallopt(3): who still uses it is found out. A kernel
# once computed with an array that it had let go, and was right as long as no other thread took the memory.
_FREED, _M_PERTURB = 0xA5, -6


def pytest_configure(config: pytest.Config) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(_M_PERTURB, _FREED)
        # Of processes that tests start.
        os.environ["MALLOC_PERTURB_"] = str(_FREED)
    # Ray's own models use what pydantic deprecated.
    config.addinivalue_line("filterwarnings", "ignore:Using extra keyword arguments on `Field`")


@dataclass(frozen=True, slots=True)
class ClusterUnderTest:
    """running: the cluster, see cluster.app.Running; client and stub: two ways to ask it; collector:
    where its spans go.
    """

    running: Running
    client: Client
    stub: inference_pb2_grpc.InferenceServiceStub
    channel: grpc.Channel
    collector: OtlpReceiver


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that fits in a test."""
    from cluster.checkpoints.tiny import build_tiny

    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=1)


@pytest.fixture(scope="session")
def cluster(tiny_path: Path) -> Iterator[ClusterUnderTest]:
    """Emulated head, L4 and H100 nodes, a tiny random target and one n-gram drafter.

    A test that takes something away puts it back.
    """
    from cluster.app import running
    from cluster.config import load_config

    config = load_config(
        None,
        [
            f"model={tiny_path}",
            "emulation.enabled=true",
            "gateway.grpc_port=0",
            "gateway.http_port=0",
            "verifier.threads=1",
            # Drafts in every round, however little they save a target so small.
            "verifier.planner=fixed",
            # One lossy law that requests may opt into, the others being refused.
            "laws.lossy=[truncation:min_p]",
            # Few places, so that a test can fill them.
            "verifier.max_active=8",
            "verifier.max_queued=8",
            "start_timeout_s=180",
        ],
    )
    with receiving() as collector, pytest.MonkeyPatch.context() as environment:
        # Inherited by every process of the cluster, those of a node that joins later included.
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        with (
            running(config) as started,
            Client(started.grpc_address, timeout=60) as client,
            grpc.insecure_channel(started.grpc_address) as channel,
        ):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            yield ClusterUnderTest(started, client, stub, channel, collector)
