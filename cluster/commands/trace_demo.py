"""`make trace-demo`: a cluster on this machine whose traces go to a tracing UI, requests under a strict and
under a lossy law, and where to look at them."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from rich.console import Console
from rich.table import Table

from cluster.app import Running, StartError, running
from cluster.bench.prompts import KINDS
from cluster.client import Ask, Client
from cluster.config import load_config

LOSSY = "truncation:min_p"
# A machine that does much else starts it slowly.
_START_S = 300.0


@dataclass(frozen=True, slots=True)
class TraceUi:
    """url: of the UI; otlp: where it takes spans by gRPC."""

    url: str
    otlp: str

    def trace(self, trace_id: str) -> str:
        """The page of one trace."""
        return f"{self.url}/redirects/traces/{trace_id}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A request that was asked: its law, what its answer claims, and its trace."""

    kind: str
    law: str
    claim: str
    trace_id: str


@contextmanager
def phoenix(command: Path) -> Iterator[TraceUi]:
    """Arize Phoenix on free ports, with nothing kept. Raises StartError if it does not come up."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="truedraft-phoenix-"))
        port, grpc_port = _free_ports(2)
        settings = {
            "PHOENIX_WORKING_DIR": directory,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        log = stack.enter_context((Path(directory) / "log").open("wb"))
        serve = [str(command), "serve"]
        with subprocess.Popen(serve, env=os.environ | settings, stdout=log, stderr=log) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_for(url, process)
                yield TraceUi(url, f"http://127.0.0.1:{grpc_port}")
            finally:
                process.terminate()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/healthz", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise StartError(f"The tracing UI did not come up within {_START_S:g} s.")


@contextmanager
def traced_cluster(ui: TraceUi, *overrides: str) -> Iterator[tuple[Running, Client]]:
    """A cluster that sends its traces there and allows one lossy law. Raises StartError."""
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = ui.otlp
    config = load_config(
        None,
        [
            "emulation.enabled=true",
            "gateway.grpc_port=0",
            "gateway.http_port=0",
            f"laws.lossy=[{LOSSY}]",
            f"gateway.trace_url={ui.trace('{trace_id}')}",
            *overrides,
        ],
    )
    with running(config) as cluster, Client(cluster.grpc_address) as client:
        yield cluster, client


def ask(client: Client, kind: str, law: str, tokens: int) -> Shown:
    """Asks a prompt under a law, in a trace of its own."""
    trace_id = secrets.token_hex(16)
    question = Ask(
        messages=[("user", KINDS[kind])],
        temperature=0.8,
        max_tokens=tokens,
        law=law,
        law_params={"min_p": 0.1} if law == LOSSY else {},
        domain=kind,
    )
    answer = client.answer(question, f"00-{trace_id}-{secrets.token_hex(8)}-01")
    assert answer.final is not None
    provenance = answer.final.provenance
    return Shown(kind, provenance.effective_law, provenance.claim, trace_id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phoenix", type=Path, required=True, help="the phoenix command")
    parser.add_argument("--tokens", type=int, default=48, help="the most tokens of each answer")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    try:
        with phoenix(options.phoenix) as ui, traced_cluster(ui) as (cluster, client):
            shown = [ask(client, kind, "coupled", options.tokens) for kind in KINDS]
            shown += [ask(client, kind, LOSSY, options.tokens) for kind in ("story", "coding")]
            table = Table("prompt", "law", "claim", "trace", title="Requests")
            for each in shown:
                table.add_row(each.kind, each.law, each.claim, ui.trace(each.trace_id))
            console.print(table)
            console.print(f"all traces: {ui.url}")
            console.print(f"console: http://{cluster.http_address}/console")
            console.print("Ctrl-C stops both", style="dim")
            threading.Event().wait()
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
