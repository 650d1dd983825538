"""From a reference in the configuration to a checkpoint that transformers can load.

A reference is, in this order: the name of a packaged model (`smollm2-135m-instruct`), a local directory,
a local GGUF file, or a Hugging Face hub id, with `@revision` where one is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from cluster.cache_dir import default_cache_dir
from cluster.checkpoints.errors import CheckpointError
from cluster.checkpoints.packaged import SMOLLM2, fetch, from_gguf

DEFAULT_REFERENCE = SMOLLM2.name


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that can be loaded.

    reference: as asked; path: local directory or hub id; revision: what pins its content (a hub commit,
    a package version, a GGUF file's sha256; "local" for a directory, whose content only a weights hash can
    tell).
    """

    reference: str
    path: str
    revision: str

    @property
    def is_local(self) -> bool:
        """Whether `path` is a directory."""
        return Path(self.path).is_dir()


def resolve(reference: str, cache_dir: Path | None = None) -> Checkpoint:
    """Find the checkpoint, downloading and converting a packaged one on first use.

    cache_dir: where packaged models lie; None takes $TRUEDRAFT_CACHE or ~/.cache/truedraft.
    Raises CheckpointError.
    """
    if reference == SMOLLM2.name:
        path = fetch(SMOLLM2, cache_dir or default_cache_dir())
        return Checkpoint(reference, str(path), SMOLLM2.revision)
    directory = Path(reference).expanduser()
    if reference and directory.is_dir():
        if not (directory / "config.json").is_file():
            raise CheckpointError(f"{directory} is not a checkpoint: it has no config.json")
        return Checkpoint(reference, str(directory.resolve()), "local")
    if directory.suffix == ".gguf" and directory.is_file():
        path, digest = from_gguf(directory.resolve(), cache_dir or default_cache_dir())
        return Checkpoint(reference, str(path), digest)
    if reference.startswith(("/", "./", "../", "~")) or not reference:
        raise CheckpointError(f"no such directory: {reference!r}")
    return _on_hub(reference)


def _on_hub(reference: str) -> Checkpoint:
    repository, _, revision = reference.partition("@")
    try:
        # Also answers from the hub's local cache when the network is away.
        config = AutoConfig.from_pretrained(repository, revision=revision or "main")
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{reference!r} is neither a packaged model ({SMOLLM2.name}) nor a local directory, "
            f"and the hub did not give it: {reason}"
        ) from error
    commit: str | None = getattr(config, "_commit_hash", None)
    return Checkpoint(reference, repository, commit or revision or "main")
