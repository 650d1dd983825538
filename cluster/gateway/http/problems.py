"""Errors over HTTP: OpenAI's body and the statuses of the table; bodies that are refused unread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.gateway import wire
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.http.guard import SignInError
from cluster.gateway.http.models import ErrorBody, ErrorContent, parameter_name
from cluster.gateway.limits import MAX_MESSAGE_BYTES, too_large

# Browsers ask their user upon the second alone, so that other routes never see what they keep.
_BEARER, _BASIC = 'Bearer realm="truedraft"', 'Basic realm="truedraft console", charset="UTF-8"'


def body(error: RequestError) -> dict[str, Any]:
    """The error as OpenAI's clients read it."""
    content = ErrorContent(
        message=error.sentence,
        type=error.cause.kind,
        param=parameter_name(error.field) or None,
        code=error.reason,
    )
    return ErrorBody(error=content).model_dump(mode="json")


def response(error: RequestError) -> JSONResponse:
    """The whole answer to a request that failed before it had one."""
    headers = {wire.REASON_KEY: error.reason.value}
    if error.cause.retry_after is not None:
        headers[wire.RETRY_KEY] = str(error.cause.retry_after)
    if error.reason is Reason.UNAUTHENTICATED:
        headers["www-authenticate"] = _BASIC if isinstance(error, SignInError) else _BEARER
    return JSONResponse(body(error), error.cause.http, headers)


async def on_request_error(_request: Request, error: Exception) -> JSONResponse:
    """For FastAPI."""
    assert isinstance(error, RequestError)
    return response(error)


async def on_http_error(_request: Request, error: Exception) -> JSONResponse:
    """Routes and methods that are not there, bodies that cannot be parsed."""
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            refusal = RequestError(Reason.NOT_FOUND, "There is no such route.")
        case 405:
            refusal = RequestError(Reason.METHOD_NOT_ALLOWED, "The route does not take this method.")
        case _:
            refusal = RequestError(Reason.MALFORMED_REQUEST, "The body could not be parsed as JSON.")
    answer = response(refusal)
    answer.headers.update(error.headers or {})
    return answer


async def on_invalid_body(_request: Request, error: Exception) -> JSONResponse:
    """A body of unknown names or wrong types: its first problem, named."""
    assert isinstance(error, RequestValidationError)
    return response(_refusal(error.errors(), error.body))


async def on_fault(_request: Request, _error: Exception) -> JSONResponse:
    """What nobody expected; Starlette logs it."""
    return response(RequestError(Reason.INTERNAL, "The request failed inside the gateway."))


def _refusal(problems: Sequence[Any], given: Any) -> RequestError:
    # Of a union every member has its complaint; a name that is not known counts more than any of them.
    problem = next((each for each in problems if each["type"] == "extra_forbidden"), problems[0])
    kind, place = problem["type"], _place(problem["loc"][1:], given)
    if kind == "json_invalid":
        return RequestError(Reason.MALFORMED_REQUEST, "The body is not JSON.")
    if kind == "extra_forbidden":
        return RequestError(Reason.UNKNOWN_PARAMETER, f"{_short(place)} is not a parameter here.", place)
    if kind == "missing" and not place:
        return RequestError(Reason.MALFORMED_REQUEST, "The request has no body.")
    if kind == "missing":
        return RequestError(Reason.INVALID_ARGUMENT, f"{place} is missing.", place)
    if kind in ("literal_error", "none_required") and problem["loc"][-1] != "type":
        only = problem.get("ctx", {}).get("expected", "null").lower()
        return RequestError(
            Reason.UNKNOWN_PARAMETER, f"{place} is not served here; it may only be {only} or left out.", place
        )
    text = problem["msg"].removeprefix("Value error, ")
    where = f"{_short(place)}: " if place else ""
    out_of_range = kind.startswith(("greater_than", "less_than"))
    reason = Reason.INVALID_ARGUMENT if out_of_range else Reason.MALFORMED_REQUEST
    return RequestError(reason, f"{where}{text[:1].lower()}{text[1:]}.", place)


def _place(parts: Sequence[Any], given: Any) -> str:
    """The dotted path of a problem, without the names of types that pydantic mixes in."""
    path: list[str] = []
    for index, part in enumerate(parts):
        inside = (isinstance(given, dict) and part in given) or (
            isinstance(given, list) and isinstance(part, int) and part < len(given)
        )
        if inside:
            given = given[part]
        elif not (isinstance(given, dict) and index == len(parts) - 1):
            continue
        path.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(path).removeprefix(".")


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:80] + "…"


class PayloadLimit:
    """Refuses bodies beyond MAX_MESSAGE_BYTES, whether or not they say how long they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: list[Message] = []
        size = 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_MESSAGE_BYTES:
                await response(too_large())(scope, receive, send)
                return
            messages.append(message)
            if message["type"] != "http.request" or not message.get("more_body"):
                break

        async def replay() -> Message:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, replay, send)
