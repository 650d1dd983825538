"""Registers InferenceService and grpc.health.v1 with Serve's gRPC proxy so that a client's disconnect is
never lost, and no message of any size is taken.

Ray 2.60's proxy forwards a stream by an async generator. A client that goes away while the generator is
suspended in a `yield` (about one in thirty disconnects of a fast stream) leaves it to the garbage collector,
which can no longer cancel the request: the replica decodes to the end for nobody. Here a task consumes the
proxy's generator, so that it is always waiting for the replica when the cancellation comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from cluster.gateway import wire
from cluster.gateway.limits import MAX_MESSAGE_BYTES, too_large
from truedraft.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server

_Forward = Callable[[Any, Any], AsyncIterator[bytes]]
_Handler = Callable[[Any, Any], Awaitable[Any]]


def add_to_proxy(servicer: Any, server: Any) -> None:
    """For gRPCOptions.grpc_servicer_functions; `server` makes a handler for each method."""
    make = server.service_handler_factory

    def make_cancellable(*, service_method: str, streaming_type: Any) -> Any:
        handler = make(service_method=service_method, streaming_type=streaming_type)
        return limited(cancellable(handler) if streaming_type.value == "unary_stream" else handler)

    server.service_handler_factory = make_cancellable
    try:
        add_InferenceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        add_HealthServicer_to_server(servicer, server)
    finally:
        server.service_handler_factory = make


def limited(handler: _Handler) -> _Handler:
    """A handler that refuses a request beyond MAX_MESSAGE_BYTES before it is copied any further."""

    async def unary(request: Any, context: Any) -> Any:
        if request.ByteSize() > MAX_MESSAGE_BYTES:
            error = too_large()
            await context.abort(error.cause.grpc, error.sentence, tuple(wire.error_trailer(error)))
        return await handler(request, context)

    return unary


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
