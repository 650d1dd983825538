"""vLLM's own server, from an environment of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from cluster.bench.peers.endpoint import Endpoint

_START_S, _STOP_S = 420.0, 20.0
# Its workers look for the next order without sleeping for a second after the last.
_SPINS_S = 1.5
_CONTEXT = 2048
_TOKENS, _SUFFIX = 8, 3


class PeerMissingError(Exception):
    """A peer cannot take part; says why."""


@contextmanager
def vllm(python: Path, checkpoint: str, dtype: str, speculates: bool) -> Iterator[Endpoint]:
    """A server of the checkpoint on a free port; python: of an environment that has vLLM; speculates: by
    n-grams, as many drafts and as short a suffix as ours. Prompts that come again are computed again, as with
    the others.

    Raises PeerMissingError when it does not come up.
    """
    name = "vLLM n-gram" if speculates else "vLLM"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    # Its command `vllm` asks for a distribution of that name, which the build for CPUs is not.
    serve = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint]
    serve += ["--served-model-name", "target", "--dtype", dtype]
    serve += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(_CONTEXT)]
    serve += ["--no-enable-prefix-caching", "--disable-log-stats"]
    if speculates:
        by_ngrams = {
            "method": "ngram",
            "num_speculative_tokens": _TOKENS,
            "prompt_lookup_min": _SUFFIX,
            "prompt_lookup_max": 2 * _TOKENS,
        }
        serve += ["--speculative-config", json.dumps(by_ngrams)]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                serve, env=_environment(), stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise PeerMissingError(f"{python} cannot be run: {error.strerror}.") from error
        try:
            if not _came_up(f"http://127.0.0.1:{port}/health", process):
                raise PeerMissingError(f"{name} did not come up: {_last_line(log)}")
            yield Endpoint(name, f"http://127.0.0.1:{port}", "target", process.pid, rest=_SPINS_S)
        finally:
            _end(process)


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    return own | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def _came_up(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return True
        except (URLError, OSError):
            time.sleep(1.0)
    return False


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server with its workers, which are of its session."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
