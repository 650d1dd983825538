"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import grpc

from cluster.client.answer import Answer, take
from cluster.client.ask import Ask
from cluster.client.resuming import Resumption, Terms
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc


class AsyncClient:
    """Calls on one channel, made in a running event loop. Use it as an async context manager, or await
    `close`."""

    def __init__(
        self, endpoint: str, timeout: float | None = None, retries: int = 0, api_key: str = ""
    ) -> None:
        """See Terms."""
        self._terms = Terms(endpoint, timeout, retries, api_key)
        self._channel = grpc.aio.insecure_channel(endpoint)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def stream(self, ask: Ask, traceparent: str = "") -> AsyncGenerator[pb.GenerateResponse, None]:
        """The service's messages as they come, see Resumption. Raises RequestFailedError; closing it, or
        cancelling the task, cancels the request."""
        resumption, metadata = Resumption(ask, self._terms), self._terms.metadata(traceparent)
        while True:
            call = self._stub.Generate(resumption.request(), metadata=metadata, timeout=resumption.left())
            try:
                async for response in call:
                    for message in resumption.took(response):
                        yield message
                return
            except grpc.RpcError as error:
                pause = resumption.pause_after(error)
            finally:
                call.cancel()
            await asyncio.sleep(pause)

    async def answer(self, ask: Ask, traceparent: str = "") -> Answer:
        """The whole answer, streamed. Raises RequestFailedError."""
        answer = Answer()
        async for response in self.stream(ask, traceparent):
            take(answer, response)
        return answer

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
