"""A collector that accepts spans and discards them unread, since a collector's own work is not what
observation costs the engine. It runs until its standard input ends and prints its endpoint first:

    python -m cluster.bench.overhead.otlp_sink
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@contextmanager
def sinking() -> Iterator[str]:
    """The endpoint of a sink in a process of its own."""
    command = [sys.executable, "-m", "cluster.bench.overhead.otlp_sink"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    # An empty message says that all spans were taken.
    export = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": export}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main()
