"""Where a block-diffusion drafter's checkpoint lies: shipped with the package, in a folder, or on the hub."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from cluster.checkpoints.errors import CheckpointError
from cluster.checkpoints.registry import Checkpoint

# The drafter of the default model, by its name; its card lies beside its weights.
SHIPPED: Final = "smollm2-135m-dflash"
_SHIPPED_FOLDER = Path(__file__).parent / "shipped" / SHIPPED


def resolve_drafter(reference: str) -> Checkpoint:
    """The checkpoint, whose path is a local directory. Raises CheckpointError.

    reference: the shipped drafter's name, a directory, or a hub id with `@revision` where one is wanted.
    """
    if reference == SHIPPED:
        weights = (_SHIPPED_FOLDER / "model.safetensors").read_bytes()
        return Checkpoint(reference, str(_SHIPPED_FOLDER), hashlib.sha256(weights).hexdigest()[:12])
    directory = Path(reference).expanduser()
    if reference and directory.is_dir():
        return Checkpoint(reference, str(directory.resolve()), "local")
    if reference.startswith(("/", "./", "../", "~")) or not reference:
        raise CheckpointError(f"no such directory: {reference!r}")
    return on_hub(reference)


def on_hub(reference: str) -> Checkpoint:
    """A snapshot of weights and configuration. Raises CheckpointError."""
    repository, _, revision = reference.partition("@")
    try:
        patterns = ["*.json", "*.safetensors"]
        folder = snapshot_download(repository, revision=revision or None, allow_patterns=patterns)
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{reference!r} is neither the shipped drafter ({SHIPPED}) nor a local directory, "
            f"and the hub did not give it: {reason}"
        ) from error
    # The folder of a snapshot is named by its commit.
    return Checkpoint(reference, folder, Path(folder).name)
