"""Who may read what tells of all tenants, over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request

from cluster.gateway.tenants import Doors


def operators_only(doors: Doors) -> Callable[[Request], None]:
    """A dependency of routes. Raises RequestError for all but operators."""

    def guard(request: Request) -> None:
        doors.operator(request.headers.items())

    return guard
