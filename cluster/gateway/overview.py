"""What a gateway knows of the whole cluster: it asks every replica of gateway and verifier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from prometheus_client import Metric
from ray.serve.handle import DeploymentHandle

from cluster.gateway.console.view import view
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.spec import GatewaySpec
from cluster.telemetry.metrics import exposition

log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0


class Overview:
    """gateways, verifiers: handles of the deployments, this gateway's own among them."""

    def __init__(
        self,
        gateways: DeploymentHandle[Any],
        verifiers: DeploymentHandle[Any],
        spec: GatewaySpec,
    ) -> None:
        self._spec = spec
        self._gateways = gateways
        self._verifiers = verifiers

    async def metrics(self) -> bytes:
        """In Prometheus' text format."""
        found = await asyncio.gather(
            *(self._ask(handle, "metrics") for handle in (self._gateways, self._verifiers)),
            return_exceptions=True,
        )
        # A deployment that does not answer must not hide what the other one has counted.
        answered = [replicas for replicas in found if not isinstance(replicas, BaseException)]
        processes: list[Iterable[Metric]] = [families for replicas in answered for families in replicas]
        return exposition(processes)

    async def console(self) -> dict[str, Any]:
        """The console's numbers. Raises RequestError where a deployment does not answer."""
        verifiers, requests = await asyncio.gather(self.verifiers(), self.requests())
        spec = self._spec
        return view(spec.served_name, verifiers, requests, spec.trace_url, spec.measured)

    async def verifiers(self) -> list[dict[str, Any]]:
        """What each verifier says of itself."""
        return await self._ask(self._verifiers, "info")

    async def requests(self) -> list[dict[str, Any]]:
        """The last requests of all gateways, newest first."""
        lines = [line for replica in await self._ask(self._gateways, "recent") for line in replica]
        return sorted(lines, key=lambda line: str(line["time"]), reverse=True)

    async def _ask(self, handle: DeploymentHandle[Any], method: str) -> list[Any]:
        """The answers of a deployment's replicas. Raises RequestError where they do not come in time."""
        try:
            asked = handle.broadcast(method)
            answers = await asked.results_async(timeout_s=_TIMEOUT_S, return_exceptions=True)
        except Exception as error:
            log.warning("a deployment did not answer %s: %s", method, error)
            sentence = "A deployment of the cluster did not answer; try again later."
            raise RequestError(Reason.VERIFIER_UNAVAILABLE, sentence) from error
        return [answer for answer in answers if not isinstance(answer, BaseException)]
