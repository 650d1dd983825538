"""Kernels for a CPU: layers in float32, softmax, the race for a token; numba compiles them at the first call.

Every row is computed by itself: its bits do not depend on the other rows of a step, on how they are cut into
tiles, or on the number of threads. What is compiled is kept in the cache folder, apart by these sources.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numba
from numba.core import config

from cluster.cache_dir import default_cache_dir

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Compiled(Protocol):
    def __call__(self, **options: Any) -> Callable[[_Function], _Function]: ...


def _keep_compiled() -> bool:
    """Points numba's cache to a folder of ours; false where none can be written."""
    sources = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(source.read_bytes())
    # numba itself looks only at the file of the function, not at what it calls.
    folder = default_cache_dir() / "kernels" / sources.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return os.access(folder, os.W_OK)


# As numba's njit. Division by zero gives infinities, as in torch; other threads run meanwhile, so that a step
# does not hold up the answers and drafts that are on their way.
compiled = cast(_Compiled, partial(numba.njit, error_model="numpy", nogil=True, cache=_keep_compiled()))
