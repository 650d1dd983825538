"""Where what is made once per machine lies: converted models and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """$TRUEDRAFT_CACHE, or ~/.cache/truedraft."""
    configured = os.environ.get("TRUEDRAFT_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "truedraft"
