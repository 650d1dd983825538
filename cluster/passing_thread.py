"""A thread for work that happens once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def in_passing_thread(
    work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """`asyncio.to_thread` with a thread that ends.

    A thread that has computed in parallel keeps its team of OpenMP threads for as long as it lives. With more
    of them than cores, OpenMP lets all of them sleep where they would wait, a hundred times in every step.
    """
    with ThreadPoolExecutor(1, "passing") as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: work(*args, **kwargs))
