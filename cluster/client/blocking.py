"""The client that blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc

from cluster.client.answer import Answer, take
from cluster.client.ask import Ask
from cluster.client.resuming import Resumption, Terms
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc


class Client:
    """Blocking calls on one channel. Use it as a context manager, or call `close`."""

    def __init__(
        self, endpoint: str, timeout: float | None = None, retries: int = 0, api_key: str = ""
    ) -> None:
        """See Terms."""
        self._terms = Terms(endpoint, timeout, retries, api_key)
        self._channel = grpc.insecure_channel(endpoint)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def stream(self, ask: Ask, traceparent: str = "") -> Iterator[pb.GenerateResponse]:
        """The service's messages as they come, see Resumption. Raises RequestFailedError; closing it cancels
        the request."""
        resumption, metadata = Resumption(ask, self._terms), self._terms.metadata(traceparent)
        while True:
            call = self._stub.Generate(resumption.request(), metadata=metadata, timeout=resumption.left())
            try:
                for response in call:
                    yield from resumption.took(response)
                return
            except grpc.RpcError as error:
                pause = resumption.pause_after(error)
            finally:
                call.cancel()
            time.sleep(pause)

    def answer(self, ask: Ask, traceparent: str = "") -> Answer:
        """The whole answer, streamed. Raises RequestFailedError."""
        answer = Answer()
        for response in self.stream(ask, traceparent):
            take(answer, response)
        return answer

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
