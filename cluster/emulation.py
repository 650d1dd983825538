"""A Ray cluster of several nodes on one machine, with the labels and resources of the nodes it stands for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

# Read by Ray when it is imported, and inherited by every process it starts.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's own processes would otherwise come before the model's.
os.environ.setdefault("RAY_worker_niceness", "0")
# An emulated GPU is a number: what a replica sees of real devices is not Ray's to change.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

# Serve's proxy would otherwise read messages of 2 GiB before anything here can refuse them.
os.environ.setdefault("RAY_SERVE_GRPC_MAX_MESSAGE_SIZE", str(64 * 2**20))
# Serve's proxy, the gateway and the verifiers talk over gRPC, which costs less than Ray's objects.
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
# One event loop in each replica: nothing here holds it for long, and tokens change threads less.
os.environ.setdefault("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0")
# The nodes share their cores with the model, and what Ray does all the time is taken from it: Serve's
# controller looks around ten times a second otherwise, and every process hands on metrics nobody collects.
os.environ.setdefault("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5")
os.environ.setdefault("RAY_SERVE_METRICS_EXPORT_INTERVAL_MS", "5000")
os.environ.setdefault("RAY_enable_metrics_collection", "0")

import psutil
import ray
from ray.cluster_utils import Cluster

from cluster.config import ACCELERATOR_LABEL, EmulatedNode, Emulation

_MIB = 2**20
_GRACE_S = 5.0


class EmulatedCluster:
    """The running nodes. The first is the head and cannot be taken away."""

    def __init__(self, cluster: Any, nodes: list[tuple[EmulatedNode, Any]]) -> None:
        self._cluster = cluster
        self._nodes = nodes

    def remove(self, accelerator: str) -> None:
        """Takes every node away that is labelled with the accelerator, with all that runs on it."""
        for spec, node in self._nodes[1:]:
            if spec.labels.get(ACCELERATOR_LABEL) == accelerator:
                processes = _processes(node)
                self._cluster.remove_node(node, allow_graceful=False)
                _end(processes)
                self._nodes.remove((spec, node))

    def add(self, spec: EmulatedNode) -> None:
        """One more node, alive when this returns."""
        self._nodes.append((spec, self._cluster.add_node(**_options(spec))))


@contextmanager
def emulated(emulation: Emulation) -> Iterator[EmulatedCluster]:
    """Starts the nodes and connects this process; leaves no process behind, however it is left."""
    _forget_stale_cluster()
    logging.getLogger("ray").setLevel(logging.ERROR)
    head, *workers = emulation.nodes
    cluster: Any = Cluster(shutdown_at_exit=True)
    try:
        # Waited for all at once below: nodes start side by side.
        # Nobody reads what a log monitor would hand on, and nothing scales these nodes.
        quiet = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        nodes = [(head, cluster.add_node(**quiet, **_options(head)))]
        nodes += [(worker, cluster.add_node(wait=False, **_options(worker))) for worker in workers]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        with sigterm_exits():
            yield EmulatedCluster(cluster, nodes)
    finally:
        with _undisturbed():
            _take_down(cluster)


def _options(spec: EmulatedNode) -> dict[str, Any]:
    return {
        "num_cpus": spec.num_cpus,
        "num_gpus": spec.num_gpus,
        "labels": dict(spec.labels),
        "resources": dict(spec.resources),
        "object_store_memory": spec.object_store_mb * _MIB,
    }


def _take_down(cluster: Any) -> None:
    processes = [process for node in cluster.list_all_nodes() for process in _processes(node)]
    try:
        ray.shutdown()
        cluster.shutdown()
    finally:
        _end(processes)


def _processes(node: Any) -> list[psutil.Process]:
    """The node's own processes and their descendants, such as the workers of its raylet."""
    found: list[psutil.Process] = []
    for infos in node.all_processes.values():
        for info in infos:
            try:
                process = psutil.Process(info.process.pid)
                found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
    return found


def _end(processes: list[psutil.Process]) -> None:
    """Workers leave by themselves once their raylet is gone; those that do not are killed."""
    _, alive = psutil.wait_procs(processes, timeout=_GRACE_S)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_GRACE_S)


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Makes SIGTERM a SystemExit. To be entered once Ray is connected: its core installs a handler of its
    own, which prints a stack trace and aborts.
    """

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    # Signals arrive in the main thread, and only there can they be handled.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Taking down lasts seconds: a second Ctrl-C must not leave half of it behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _forget_stale_cluster() -> None:
    """Removes the address that a crashed cluster left behind; Ray would try to join it."""
    os.environ.pop("RAY_ADDRESS", None)
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp/ray")) / "ray_current_cluster"
    try:
        address = file.read_text().strip()
    except OSError:
        return
    if not _alive(address):
        file.unlink(missing_ok=True)


def _alive(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False
