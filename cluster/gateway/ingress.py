"""The Serve ingress deployment: InferenceService on Serve's gRPC proxy, OpenAI's routes on its HTTP proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from grpc_health.v1 import health_pb2
from prometheus_client import Metric
from ray import serve
from ray.serve._private.constants import RAY_SERVE_USE_GRPC_BY_DEFAULT
from ray.serve.grpc_util import RayServegRPCContext
from ray.serve.handle import DeploymentHandle

from cluster.calls import add_pieces
from cluster.gateway import wire
from cluster.gateway.console.routes import console_router
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.http.app import create_app
from cluster.gateway.http.guard import operators_in_browsers, operators_only
from cluster.gateway.http.metrics import metrics_router
from cluster.gateway.limits import MAX_WATCHES
from cluster.gateway.overview import Overview
from cluster.gateway.prompting import load_prompting
from cluster.gateway.record import log_to_stderr
from cluster.gateway.service import GatewayService
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.status import StatusProbe
from cluster.gateway.tenants import Doors
from cluster.gateway.verifiers import Events, OneByOne
from cluster.speculation.request import GenerationRequest
from cluster.telemetry.logs import log_as_json
from cluster.telemetry.metrics import setup_metrics
from cluster.telemetry.setup import setup
from truedraft.v1 import inference_pb2 as pb

SERVICER = "cluster.gateway.servicer.add_to_proxy"
SERVICER_ON_LOOPBACK = "cluster.gateway.servicer.add_on_loopback"
# What health is asked of: the server as a whole, and the service by its name.
HEALTH_SERVICES = ("", "truedraft.v1.InferenceService")
_WATCH_S = 5.0


@serve.deployment
@serve.ingress()
class GatewayDeployment:
    """Serve calls the methods by the names that inference.proto gives them, and the ASGI application for
    what comes by HTTP."""

    def __init__(self, spec: GatewaySpec, verifier: DeploymentHandle[Any]) -> None:
        context = serve.get_replica_context()
        log_as_json("truedraft-gateway", context.replica_tag)
        log_to_stderr()
        handle: Any = verifier
        # On this loop: events would otherwise change threads once more each.
        handle._init(_run_router_in_separate_loop=False)
        # Over gRPC where Serve's replicas speak it: a handle keeps to Ray's objects if the process that bound
        # it had imported Serve before that was asked for.
        stream: Any = handle.options(
            stream=True,
            _by_reference=not RAY_SERVE_USE_GRPC_BY_DEFAULT,
            # What goes to and fro is ours, and there is no code in it.
            request_serialization="pickle",
            response_serialization="pickle",
        )

        def verify(request: GenerationRequest) -> Events:
            return OneByOne(stream.generate.remote(request))

        self._doors = Doors(Path(spec.keys_file) if spec.keys_file else None)
        prompting = load_prompting(spec.model, spec.cache_dir, spec.max_context)
        tracer = setup("truedraft-gateway", replica=context.replica_tag)
        self._metrics = setup_metrics("truedraft-gateway", replica=context.replica_tag)
        self._service = GatewayService(spec, prompting, verify, tracer, self._doors, self._metrics.meter)
        gateways: Any = serve.get_deployment_handle(context.deployment, context.app_name, _check_exists=False)
        self._overview = Overview(gateways, verifier, spec)
        self._watching = 0
        self._probe = StatusProbe(self._service.generate, self._overview.verifiers)

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        try:
            answer = self._service.answer(request, grpc_context.invocation_metadata())
            async with aclosing(answer):
                async for message in answer:
                    if isinstance(message, pb.Delta):
                        yield pb.GenerateResponse(delta=message)
                    else:
                        if message.index == 0:
                            _set_provenance(grpc_context, message)
                        yield pb.GenerateResponse(answer=message)
        except RequestError as error:
            _set_status(grpc_context, error)
            # Serve sends a status on without a stack trace only along with a message.
            yield pb.GenerateResponse()

    async def Complete(  # noqa: N802
        self, request: pb.GenerateRequest, grpc_context: RayServegRPCContext
    ) -> pb.CompleteResponse:
        responses: list[pb.CompleteResponse] = []
        try:
            async for message in self._service.answer(request, grpc_context.invocation_metadata()):
                while len(responses) <= message.index:
                    responses.append(pb.CompleteResponse())
                response = responses[message.index]
                if isinstance(message, pb.Delta):
                    response.text += message.text
                    response.token_ids.extend(message.token_ids)
                    response.logprobs.extend(message.logprobs)
                    add_pieces(response.tool_calls, message.tool_calls)
                else:
                    response.answer.CopyFrom(message)
        except RequestError as error:
            _set_status(grpc_context, error)
            return pb.CompleteResponse()
        first, *more = responses
        _set_provenance(grpc_context, first.answer)
        first.more.extend(more)
        return first

    async def ListModels(  # noqa: N802
        self, _request: pb.ListModelsRequest, grpc_context: RayServegRPCContext
    ) -> pb.ListModelsResponse:
        try:
            model = self._service.described(grpc_context.invocation_metadata())
        except RequestError as error:
            _set_status(grpc_context, error)
            return pb.ListModelsResponse()
        return pb.ListModelsResponse(models=[model])

    async def GetStatus(  # noqa: N802
        self, _request: pb.GetStatusRequest, grpc_context: RayServegRPCContext
    ) -> pb.GetStatusResponse:
        try:
            counts = self._service.let_in(grpc_context.invocation_metadata())
        except RequestError as error:
            _set_status(grpc_context, error)
            return pb.GetStatusResponse()
        status = await self._probe.status()
        return pb.GetStatusResponse(
            state=status.state,
            detail=status.detail,
            in_flight=self._service.in_flight if counts else 0,
            active=status.active if counts else 0,
            queued=status.queued if counts else 0,
            audit_alarm=status.audit_alarm,
        )

    async def Check(  # noqa: N802 - of grpc.health.v1.Health
        self, request: health_pb2.HealthCheckRequest, grpc_context: RayServegRPCContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in HEALTH_SERVICES:
            _set_status(grpc_context, RequestError(Reason.NOT_FOUND, "There is no such service."))
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=await self._serving())

    async def List(self, _request: health_pb2.HealthListRequest) -> health_pb2.HealthListResponse:  # noqa: N802
        serving = health_pb2.HealthCheckResponse(status=await self._serving())
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(HEALTH_SERVICES, serving))

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, grpc_context: RayServegRPCContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        if self._watching >= MAX_WATCHES:
            sentence = f"At most {MAX_WATCHES} watch at a time; ask by Check."
            _set_status(grpc_context, RequestError(Reason.OVERLOADED, sentence))
            yield health_pb2.HealthCheckResponse()
            return
        self._watching += 1
        try:
            told = None
            while True:
                known = request.service in HEALTH_SERVICES
                now = await self._serving() if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                if now != told:
                    told = now
                    yield health_pb2.HealthCheckResponse(status=now)
                await asyncio.sleep(_WATCH_S)
        finally:
            self._watching -= 1

    async def _serving(self) -> health_pb2.HealthCheckResponse.ServingStatus:
        ready = (await self._probe.status()).ready
        response = health_pb2.HealthCheckResponse
        return response.SERVING if ready else response.NOT_SERVING

    async def info(self) -> dict[str, Any]:
        """What this replica holds."""
        return {"in_flight": self._service.in_flight, "tasks": len(asyncio.all_tasks())}

    def metrics(self) -> list[Metric]:
        """What this replica has counted."""
        return self._metrics.families()

    def recent(self) -> list[dict[str, Any]]:
        """The last requests of this replica, as they were logged."""
        return [dict(line) for line in self._service.ledger.recent]

    def __serve_build_asgi_app__(self) -> FastAPI:
        app = create_app(self._service, self._probe)
        app.include_router(metrics_router(self._overview.metrics, operators_only(self._doors)))
        app.include_router(console_router(self._overview.console, operators_in_browsers(self._doors)))
        return app


def _set_provenance(context: RayServegRPCContext, answer: pb.Answer) -> None:
    """Of several answers the first's: metadata hold no more."""
    context.set_trailing_metadata([(wire.PROVENANCE_KEY, wire.to_trailer(answer.provenance))])


def _set_status(context: RayServegRPCContext, error: RequestError) -> None:
    context.set_code(error.cause.grpc)
    context.set_details(error.sentence)
    context.set_trailing_metadata(wire.error_trailer(error))
