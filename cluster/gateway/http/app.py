"""The routes of the HTTP front, as an ASGI application over the service."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from google.protobuf.json_format import MessageToDict
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from cluster.gateway import wire
from cluster.gateway.errors import CAUSES, RequestError
from cluster.gateway.http import problems
from cluster.gateway.http.models import ChatRequest, CompletionRequest, ErrorBody
from cluster.gateway.http.responses import Chat, Choice, Completions, event, provenance
from cluster.gateway.merging import merged
from cluster.gateway.service import GatewayService
from cluster.gateway.status import StatusProbe
from truedraft.v1 import inference_pb2 as pb

LAW_HEADER = "truedraft-law"
_STATUSES = sorted({cause.http for cause in CAUSES.values()} - {404, 405})
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in _STATUSES}
_REFUSED: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 401, 404)}
_SSE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}

_Messages = AsyncGenerator[pb.Delta | pb.Answer, None]
_Explain = Callable[[Request, Exception], Coroutine[Any, Any, JSONResponse]]


def create_app(service: GatewayService, probe: StatusProbe) -> FastAPI:
    """OpenAI's routes over a service, and what probes ask."""
    app = FastAPI(title="truedraft", openapi_url=None, redirect_slashes=False)
    app.add_middleware(problems.PayloadLimit)
    app.add_exception_handler(RequestError, problems.on_request_error)
    app.add_exception_handler(RequestValidationError, _to_the_known(service, problems.on_invalid_body))
    app.add_exception_handler(HTTPException, _to_the_known(service, problems.on_http_error))
    app.add_exception_handler(Exception, problems.on_fault)
    started = int(time.time())

    @app.post("/v1/completions", responses={**_SSE, **_ERRORS})
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await _answer(
            service, body, Completions(body.model or service.models[0], body.n or 1), request
        )

    @app.post("/v1/chat/completions", responses={**_SSE, **_ERRORS})
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await _answer(service, body, Chat(body.model or service.models[0], body.n or 1), request)

    @app.get("/v1/models", responses=_REFUSED)
    async def models(request: Request) -> dict[str, Any]:
        data = [_model(service, request, started, name) for name in service.models]
        return {"object": "list", "data": data}

    @app.get("/v1/models/{model:path}", responses=_REFUSED)
    async def model(model: str, request: Request) -> dict[str, Any]:
        described = _model(service, request, started, model)
        service.check_model(model)
        return described

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> dict[str, Any]:
        service.let_in(request.headers.items())
        return app.openapi()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The gateway is there; whether it can serve is for /readyz to say."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "no verified token can be generated"}})
    async def readyz() -> JSONResponse:
        """Ready or degraded: a verified token was generated within the last seconds."""
        status = await probe.status()
        state = pb.State.Name(status.state).removeprefix("STATE_").lower()
        content = {"status": state, "detail": status.detail, "audit_alarm": status.audit_alarm}
        return JSONResponse(content, 200 if status.ready else 503)

    return app


def _to_the_known(service: GatewayService, explain: _Explain) -> _Explain:
    """What is wrong with a request is told to those who may ask at all."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        try:
            service.let_in(request.headers.items())
        except RequestError as refused:
            return problems.response(refused)
        return await explain(request, error)

    return handle


def _model(service: GatewayService, request: Request, started: int, name: str) -> dict[str, Any]:
    model = service.described(request.headers.items())
    described = MessageToDict(model, preserving_proto_field_name=True)
    del described["id"]
    own = {"id": name, "object": "model", "created": started, "owned_by": "truedraft"}
    return own | {"truedraft": described}


async def _answer(
    service: GatewayService, body: CompletionRequest | ChatRequest, shape: Completions, request: Request
) -> Response:
    with_usage = body.wants_usage
    asked, headers = body.to_protos(), request.headers.items()
    each = [service.answer(one, headers) for one in asked]
    messages = each[0]
    if len(each) > 1:
        # Choices are numbered through.
        messages = merged([_numbered(answers, at * shape.n) for at, answers in enumerate(each)])
    if body.stream:
        # The first message is waited for: until then a fault still has a status.
        first = await anext(messages)
        law = first.law if isinstance(first, pb.Delta) else first.provenance.effective_law
        return _Stream(_events(first, messages, shape, shape.n * len(each), with_usage), messages, law)
    choices: defaultdict[int, Choice] = defaultdict(Choice)
    async with aclosing(messages):
        async for message in messages:
            choices[message.index].take(message)
    provenance_of_first = choices[0].answer.provenance
    trailer = wire.to_trailer(provenance_of_first)
    told = {LAW_HEADER: provenance_of_first.effective_law, wire.PROVENANCE_KEY: trailer}
    whole = shape.whole([choices[index] for index in sorted(choices)])
    return JSONResponse(whole, headers=told)


async def _numbered(messages: _Messages, first: int) -> _Messages:
    """With the numbers of answers counted from `first`."""
    async with aclosing(messages):
        async for message in messages:
            message.index += first
            yield message


class _Stream(StreamingResponse):
    """Closes what it streams when it is over, however that came about: the garbage collector, to which a
    cancelled response leaves it otherwise, could no longer free the verifier's sequence."""

    def __init__(self, events: AsyncGenerator[bytes, None], messages: _Messages, law: str) -> None:
        headers = {LAW_HEADER: law, "cache-control": "no-cache"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._closing = (events, messages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for generator in self._closing:
                await generator.aclose()


async def _events(
    first: pb.Delta | pb.Answer, messages: _Messages, shape: Completions, count: int, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events of `count` answers. An error in the middle is an event of its own, after which
    nothing comes.

    What comes at the same moment is one chunk: each costs the way through Serve.
    """
    # Each of several answers has an id of its own; the stream has the first one's that was seen.
    answers: dict[int, pb.Answer] = {}
    opened: set[int] = set()
    chunk = b""
    async with aclosing(messages):
        try:
            async for message in _all(first, messages):
                index = message.index
                if index not in opened and (opening := shape.opening(index)) is not None:
                    chunk += event(shape.chunk(first.id, [opening]))
                opened.add(index)
                if isinstance(message, pb.Delta):
                    law = {"law": message.law, "token_ids": list(message.token_ids)}
                    yield chunk + event(shape.chunk(first.id, [shape.delta(message)], truedraft=law))
                    chunk = b""
                else:
                    answers[index] = message
                    end = shape.end(message)
                    chunk += event(shape.chunk(first.id, [end], truedraft=provenance(message)))
                    if len(answers) < count:
                        # The others may still be queued.
                        yield chunk
                        chunk = b""
            if with_usage:
                chunk += event(shape.chunk(first.id, [], usage=shape.usage(list(answers.values()))))
        except RequestError as error:
            yield chunk + event(problems.body(error))
            return
        yield chunk + event("[DONE]")


async def _all(first: pb.Delta | pb.Answer, rest: _Messages) -> AsyncIterator[pb.Delta | pb.Answer]:
    yield first
    async for message in rest:
        yield message
