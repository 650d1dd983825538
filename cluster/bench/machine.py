"""What the machine can do at best: the memory bandwidth that decoding one token is bound by."""

from __future__ import annotations

import os
import platform
import statistics
import time
from dataclasses import dataclass

import torch

_BYTES = 512 * 1024 * 1024
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Machine:
    """bandwidth: bytes per second of reading memory with all cores, the best of several passes."""

    processor: str
    cores: int
    threads: int
    torch: str
    bandwidth: float


def measure() -> Machine:
    """Reads half a gibibyte several times with torch's threads."""
    data = torch.ones(_BYTES // 4)
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - began)
    return Machine(
        _processor(), os.cpu_count() or 1, torch.get_num_threads(), torch.__version__, _BYTES / min(times)
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def weight_bytes(parameters: list[torch.Tensor]) -> int:
    """Bytes that one decoding step reads: each distinct parameter once."""
    return sum({p.data_ptr(): p.numel() * p.element_size() for p in parameters}.values())


def median(values: list[float]) -> float:
    """The median; 0 for none."""
    return statistics.median(values) if values else 0.0
