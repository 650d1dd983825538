"""The route that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from cluster.gateway.http.models import ErrorBody
from cluster.telemetry.metrics import CONTENT_TYPE

_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def metrics_router(collect: Callable[[], Awaitable[bytes]], guard: Callable[[Request], None]) -> APIRouter:
    """collect: the text to answer with, of the whole cluster; guard: raises for who may not read it."""
    router = APIRouter()

    @router.get(
        "/metrics",
        dependencies=[Depends(guard)],
        response_class=Response,
        responses={200: _TEXT, 401: {"model": ErrorBody}, 403: {"model": ErrorBody}},
    )
    async def metrics() -> Response:
        return Response(await collect(), media_type=CONTENT_TYPE)

    return router
