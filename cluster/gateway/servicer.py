"""Registers InferenceService and grpc.health.v1 with Serve's gRPC proxy so that a client's disconnect is
never lost, no message of any size or shape is taken, and where nobody is asked for a key, nobody from
elsewhere is answered unless the operator says so.

Ray 2.60's proxy forwards a stream by an async generator. A client that goes away while the generator is
suspended in a `yield` (about one in thirty disconnects of a fast stream) leaves it to the garbage collector,
which can no longer cancel the request: the replica decodes to the end for nobody. Here a task consumes the
proxy's generator, so that it is always waiting for the replica when the cancellation comes.

That proxy also binds every interface of its machine, and takes no word about it (`start_grpc_server` in
ray/serve/_private/grpc_util.py). What a socket on loopback would do is left to the handlers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from cluster.gateway import wire
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.limits import MAX_MESSAGE_BYTES, too_large
from truedraft.v1 import inference_pb2

_Forward = Callable[[Any, Any], AsyncIterator[bytes]]
_Handler = Callable[[Any, Any], Awaitable[Any]]
_SERVICES: tuple[ServiceDescriptor, ...] = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    health_pb2.DESCRIPTOR.services_by_name["Health"],
)


def add_to_proxy(_servicer: Any, server: Any) -> None:
    """For gRPCOptions.grpc_servicer_functions; `server` makes a handler for each method."""
    _add(server, readable)


def add_on_loopback(_servicer: Any, server: Any) -> None:
    """The same for callers on this machine alone."""
    _add(server, lambda handler: on_loopback(readable(handler)))


def _add(server: Any, guarded: Callable[[_Handler], _Handler]) -> None:
    make = server.service_handler_factory

    def make_guarded(*, service_method: str, streaming_type: Any) -> Any:
        handler = make(service_method=service_method, streaming_type=streaming_type)
        return guarded(cancellable(handler) if streaming_type.value == "unary_stream" else handler)

    server.service_handler_factory = make_guarded
    try:
        for service in _SERVICES:
            server.add_generic_rpc_handlers((_handlers(service),))
    finally:
        server.service_handler_factory = make


def _handlers(service: ServiceDescriptor) -> grpc.GenericRpcHandler[Any, Any]:
    """As generated code makes them, but for how requests are read; the proxy puts its own behaviour in."""
    made = {}
    for method in service.methods:
        make: Any = (
            grpc.unary_stream_rpc_method_handler
            if method.server_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        made[method.name] = make(None, request_deserializer=reading(GetMessageClass(method.input_type)))
    handlers: grpc.GenericRpcHandler[Any, Any] = grpc.method_handlers_generic_handler(service.full_name, made)
    return handlers


def reading(kind: Any) -> Callable[[bytes], Any]:
    """Reads messages of a kind. What cannot be one becomes a RequestError: a deserializer that raises is
    answered with UNKNOWN and its exception."""

    def read(raw: bytes) -> Any:
        if len(raw) > MAX_MESSAGE_BYTES:
            return too_large()
        try:
            return kind.FromString(raw)
        except DecodeError:
            sentence = f"The message is no {kind.DESCRIPTOR.name}, or has text in it that is not UTF-8."
            return RequestError(Reason.MALFORMED_REQUEST, sentence)

    return read


def readable(handler: _Handler) -> _Handler:
    """A handler that refuses what was no message."""

    async def unary(request: Any, context: Any) -> Any:
        if isinstance(request, RequestError):
            await _refuse(context, request)
        return await handler(request, context)

    return unary


def on_loopback(handler: _Handler) -> _Handler:
    """A handler that refuses peers on other machines."""

    async def unary(request: Any, context: Any) -> Any:
        if not is_loopback(context.peer()):
            sentence = "Without API keys this gateway answers its own machine alone."
            await _refuse(context, RequestError(Reason.UNAUTHENTICATED, sentence))
        return await handler(request, context)

    return unary


async def _refuse(context: Any, error: RequestError) -> None:
    await context.abort(error.cause.grpc, error.sentence, tuple(wire.error_trailer(error)))


def is_loopback(peer: str) -> bool:
    """peer: as gRPC writes it, such as ipv4:127.0.0.1:4000 or ipv6:%5B::1%5D:4000."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def cancellable(forward: _Forward) -> Callable[[Any, Any], Awaitable[None]]:
    """A handler that ends `forward` with a cancellation, and before the call's context is gone."""

    async def unary_stream(request: Any, context: Any) -> None:
        messages: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def consume() -> None:
            try:
                async for message in forward(request, context):
                    messages.put_nowait(message)
            finally:
                messages.put_nowait(None)

        consuming = asyncio.create_task(consume())
        try:
            while (message := await messages.get()) is not None:
                # An empty message only brings a status along (ingress.py).
                if message:
                    await context.write(message)
            await consuming
        finally:
            consuming.cancel()
            # The proxy still reads the peer's address from the context: outliving it would crash.
            await asyncio.wait([consuming])

    return unary_stream
