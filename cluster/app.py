"""Composition: the deployments as Serve applications, from configuration to a cluster that answers."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import ray
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ray import serve
from ray.serve.config import gRPCOptions
from ray.serve.context import _get_global_client
from ray.serve.schema import LoggingConfig

from cluster.applications import APPLICATION, DRAFTERS, drafting, serving
from cluster.checkpoints import CheckpointError, resolve
from cluster.config import EXPOSED_DRAFTS, EXPOSED_GATEWAY, ClusterConfig, Placement
from cluster.emulation import EmulatedCluster, emulated, sigterm_exits
from cluster.gateway.ingress import SERVICER, SERVICER_ON_LOOPBACK
from drafter_service.deployment import load
from drafter_service.spec import DrafterKind

log = logging.getLogger(__name__)

_DEPLOYMENTS = {
    "gateway": (APPLICATION, "GatewayDeployment"),
    "verifier": (APPLICATION, "VerifierDeployment"),
    "drafter": (DRAFTERS, "DrafterDeployment"),
}
_POLL_S = 0.25
# How long a start waits for drafters to be placed; from then on until they are loaded.
_DRAFTER_PLACEMENT_S = 15.0


class StartError(RuntimeError):
    """The cluster did not come up; one sentence says what was missing."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A running replica as Serve and Ray report it; labels: of the node it runs on."""

    deployment: str
    replica: str
    pid: int
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster that answers. emulation is None on a Ray cluster that was there before."""

    config: ClusterConfig
    grpc_address: str
    http_address: str
    emulation: EmulatedCluster | None

    def replicas(self, deployment: str) -> list[Replica]:
        """Those that run now. deployment: gateway, verifier or drafter."""
        labels = {node["NodeID"]: dict(node["Labels"]) for node in _alive_nodes()}
        return [
            Replica(deployment, detail["replica_id"], detail["pid"], labels[detail["node_id"]])
            for detail in _details(deployment)
            if detail["state"] == "RUNNING" and detail["node_id"] in labels
        ]

    def info(self, deployment: str) -> dict[str, Any]:
        """What some replica says of itself, such as its load. Raises TimeoutError without one."""
        return _info(deployment)

    def restart(self, deployment: str) -> None:
        """Has Serve replace replicas one after the other, as when the configuration changes: drafters, or
        gateways and verifiers, which are one application. Returns at once."""
        application, _ = _DEPLOYMENTS[deployment]
        targets = [each for each in _targets(self.config) if each.name == application]
        serve.run_many(targets, wait_for_applications_running=False)


@contextmanager
def running(config: ClusterConfig) -> Iterator[Running]:
    """Starts everything and takes it down on the way out. Raises StartError."""
    if config.exposes_drafts:
        raise StartError(EXPOSED_DRAFTS)
    if config.exposes_gateway:
        raise StartError(EXPOSED_GATEWAY)
    with ExitStack() as stack:
        emulation = None
        if config.emulation.enabled:
            # Here and now, where its progress is seen, instead of in three replicas at once.
            _fetch(config)
            emulation = stack.enter_context(emulated(config.emulation))
        else:
            _join(config.ray_address)
            stack.callback(ray.shutdown)
            stack.callback(_withdraw)
            stack.enter_context(sigterm_exits())
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        grpc_port = config.gateway.grpc_port or _free_port()
        http_port = config.gateway.http_port or _free_port()
        _start_serve(config, grpc_port, http_port)
        _deploy(config)
        host = _head_address() if emulation is None else "127.0.0.1"
        _wait_until_it_answers(config, f"{host}:{grpc_port}")
        _wait_for_drafters(config)
        yield Running(config, f"{host}:{grpc_port}", f"{config.gateway.host}:{http_port}", emulation)


def _fetch(config: ClusterConfig) -> None:
    try:
        resolve(config.model, config.cache_dir)
        spec = config.drafter_spec()
        if spec.kind == DrafterKind.DFLASH:
            # Whether it fits its target is better known before anything is started.
            load(spec)
        elif spec.model:
            resolve(spec.model, config.cache_dir)
    except CheckpointError as error:
        raise StartError(f"{error}.") from None


def _join(address: str) -> None:
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError):
        sentence = f"No Ray cluster answers at {address!r}: start one, or use --emulate."
        raise StartError(sentence) from None


def _withdraw() -> None:
    """Takes our applications out of a cluster that was there before, and Serve if nothing else uses it."""
    for name in (APPLICATION, DRAFTERS):
        if name in serve.status().applications:
            serve.delete(name)
    if not serve.status().applications:
        serve.shutdown()  # type: ignore[no-untyped-call]


def _start_serve(config: ClusterConfig, grpc_port: int, http_port: int) -> None:
    for port in (grpc_port, http_port):
        if config.emulation.enabled and _taken(port):
            raise StartError(
                f"Port {port} is taken; choose others with gateway.grpc_port and gateway.http_port."
            )
    servicer = SERVICER_ON_LOOPBACK if config.loopback_alone else SERVICER
    serve.start(
        # All emulated nodes share this machine's ports.
        proxy_location="HeadOnly" if config.emulation.enabled else "EveryNode",
        http_options={"host": config.gateway.host, "port": http_port},
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=[servicer]),
        logging_config=_quiet(),
    )


def _deploy(config: ClusterConfig) -> None:
    serve.run_many(_targets(config), wait_for_applications_running=False)


def _targets(config: ClusterConfig) -> list[serve.RunTarget]:
    targets = [serve.RunTarget(serving(config), name=APPLICATION, route_prefix="/", logging_config=_quiet())]
    if config.drafts_remotely:
        target = serve.RunTarget(drafting(config), name=DRAFTERS, route_prefix=None, logging_config=_quiet())
        targets.append(target)
    return targets


def _quiet() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)


def _wait_until_it_answers(config: ClusterConfig, address: str) -> None:
    """Until one verified token was generated through the gateway."""
    deadline = time.monotonic() + config.start_timeout_s
    trouble = _unplaceable("verifier", config.verifier.placement) or "the replicas are still starting"
    if trouble.startswith("no node"):
        log.warning("waiting: %s", trouble)
    while (left := deadline - time.monotonic()) > 0:
        application = serve.status().applications.get(APPLICATION)
        if application is not None and application.status == "DEPLOY_FAILED":
            raise StartError(f"The cluster did not come up: {_reason(application)}")
        if application is not None and application.status == "RUNNING":
            trouble = _unready(address, left)
            if not trouble:
                return
        time.sleep(_POLL_S)
    raise StartError(f"The cluster did not answer within {config.start_timeout_s:g} s: {trouble}.")


def _unready(address: str, timeout: float) -> str:
    """Why no verified token can be generated yet; empty if one was."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            health = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            # Just after a start the proxy does not know the application's route yet.
            return str(error.details()).rstrip(".")
    serving = health.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else "the verifiers do not generate"


def _wait_for_drafters(config: ClusterConfig) -> None:
    """Until a drafter is in use, unless none can be had: the cluster is slower without them, not broken."""
    if not config.drafts_remotely:
        return
    placement_deadline = time.monotonic() + _DRAFTER_PLACEMENT_S
    deadline = time.monotonic() + config.start_timeout_s
    while (state := str(_info("verifier")["drafting"])) == "connecting":
        application = serve.status().applications.get(DRAFTERS)
        failed = application is not None and application.status == "DEPLOY_FAILED"
        placed = any(detail.get("node_id") for detail in _details("drafter"))
        late = time.monotonic() > (deadline if placed else placement_deadline)
        if failed or late:
            state = _unplaceable("drafter", config.drafter.placement) or "no drafter could be started"
            if application is not None and failed:
                state = f"{state}: {_reason(application)}"
            break
        time.sleep(_POLL_S)
    if state != "connected":
        log.warning("plain decoding until a drafter comes: %s", state)


def _unplaceable(deployment: str, placement: Placement) -> str:
    """Why no node of the cluster can hold a replica, as far as labels tell; empty if one can."""
    wanted = {key: value for key, value in placement.label_selector.items() if value[:1].isalnum()}
    nodes = [node["Labels"] for node in _alive_nodes()]
    if not wanted or "in(" in str(wanted) or any(wanted.items() <= labels.items() for labels in nodes):
        return ""
    selector = ", ".join(f"{key}={value}" for key, value in wanted.items())
    return f"no node is labelled {selector} (see {deployment}.placement.label_selector)"


def _reason(application: Any) -> str:
    """The last line of what Serve says: of a stack trace, its error."""
    messages = [deployment.message for deployment in application.deployments.values() if deployment.message]
    lines = [line.strip() for line in "\n".join(messages).splitlines() if line.strip()]
    return lines[-1] if lines else "Serve gave no reason."


def _details(deployment: str) -> list[dict[str, Any]]:
    application, name = _DEPLOYMENTS[deployment]
    client: Any = _get_global_client()
    applications = client.get_serve_details()["applications"]
    found = applications.get(application, {}).get("deployments", {}).get(name, {})
    replicas: list[dict[str, Any]] = found.get("replicas", [])
    return replicas


def _info(deployment: str) -> dict[str, Any]:
    application, name = _DEPLOYMENTS[deployment]
    handle: Any = serve.get_deployment_handle(name, application)
    info: dict[str, Any] = handle.info.remote().result(timeout_s=30)
    return info


def _alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _head_address() -> str:
    heads = [node for node in _alive_nodes() if node["Resources"].get("node:__internal_head__")]
    return str(heads[0]["NodeManagerAddress"]) if heads else "127.0.0.1"


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
