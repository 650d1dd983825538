"""Routes of the console: the page, its parts, and its numbers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

_STATIC = Path(__file__).with_name("static")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".LICENSE": "text/plain"}
# Nothing from elsewhere, and nothing inline but the styles that the chart library sets on its elements.
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
_HEADERS = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}


def console_router(
    numbers: Callable[[], Awaitable[dict[str, Any]]], guard: Callable[[Request], None]
) -> APIRouter:
    """numbers: what `view` gives, now; guard: raises for who may not look."""
    router = APIRouter(include_in_schema=False, dependencies=[Depends(guard)])

    @router.get("/console")
    async def page() -> Response:
        return _file("console.html")

    @router.get("/console/data")
    async def data() -> JSONResponse:
        return JSONResponse(await numbers(), headers={"cache-control": "no-store"})

    @router.get("/console/{name}")
    async def part(name: str) -> Response:
        return _file(name)

    return router


def _file(name: str) -> Response:
    known = {path.name: path for path in _STATIC.iterdir()}
    if name not in known:
        raise HTTPException(404)
    return FileResponse(known[name], media_type=_TYPES[known[name].suffix], headers=_HEADERS)
