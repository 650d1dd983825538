"""A collector that takes spans and forgets them: `python -m cluster.bench.otlp_sink` prints its endpoint and
runs until its standard input ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class _Sink(TraceServiceServicer):
    def Export(  # noqa: N802
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        return ExportTraceServiceResponse()


@contextmanager
def sinking() -> Iterator[str]:
    """The endpoint of a sink in a process of its own."""
    command = [sys.executable, "-m", "cluster.bench.otlp_sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(_Sink(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
