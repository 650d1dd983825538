"""The check that no process of a cluster keeps anything of a request after its end.

2,000 short requests, of which one in five is cancelled: pages, sessions, tasks and file descriptors return to
what they were, and memory grows by less than 5 %:

    python -m cluster.checks.leaks
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from cluster.bench.prompts import SHORT
from cluster.checks.tiny_cluster import tiny_cluster
from cluster.client import Ask, AsyncClient

_GROWTH = 0.05
_CLIENTS = 16
_CANCELLED = 5
# Before what is held is first counted: pools, caches and allocators fill.
_WARM_UP = 1000
# After the last request, until what is held is what was; Serve closes connections that nobody uses.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Held:
    """By name: counts that must return to what they were, and resident bytes by process."""

    counts: Mapping[str, int]
    memory: Mapping[str, int]

    def faults(self, before: Held) -> list[str]:
        """What is more than it was, in words."""
        found = [
            f"{name}: {before.counts[name]} before, {count} after"
            for name, count in self.counts.items()
            if count > before.counts[name]
        ]
        return found + [
            f"memory of the {name} grew by {growth:.2%}"
            for name, growth in self.growth(before).items()
            if growth >= _GROWTH
        ]

    def growth(self, before: Held) -> dict[str, float]:
        """Of memory, by process."""
        return {name: memory / before.memory[name] - 1.0 for name, memory in self.memory.items()}


def held(told: Mapping[str, Mapping[str, Any]], pids: Mapping[str, int]) -> Held:
    """told: by deployment, what its one replica says of itself; pids: of the replicas."""
    counts = {
        f"{deployment}'s {name}": int(said[name])
        for deployment, said in told.items()
        for name in ("tasks", "active", "queued", "kv_tokens", "sessions", "in_flight")
        if name in said
    }
    processes = {deployment: psutil.Process(pid) for deployment, pid in pids.items()}
    counts |= {f"{name}'s file descriptors": process.num_fds() for name, process in processes.items()}
    return Held(counts, {name: process.memory_info().rss for name, process in processes.items()})


async def drive(endpoint: str, requests: int, seed: int) -> int:
    """So many requests, a few at a time; how many were cancelled. Raises RequestFailedError."""
    chance, places = random.Random(seed), asyncio.Semaphore(_CLIENTS)
    async with AsyncClient(endpoint, timeout=120) as client:

        async def one(number: int) -> bool:
            async with places:
                ask = Ask(prompt=chance.choice(SHORT), max_tokens=chance.randint(1, 12), seed=number)
                answering = asyncio.create_task(client.answer(ask))
                if number % _CANCELLED == 0:
                    await asyncio.wait([answering], timeout=chance.choice((0.0, 0.005, 0.02, 0.05)))
                    answering.cancel()
                await asyncio.wait([answering])
                if not answering.cancelled():
                    answering.result()
                return answering.cancelled()

        return sum(await asyncio.gather(*(one(number) for number in range(requests))))


def at_rest(look: Callable[[], Held], before: Held | None = None) -> Held:
    """What is held once it is no more than before, or after a while."""
    patience = time.monotonic() + _PATIENCE_S
    while True:
        time.sleep(2.0)
        now = look()
        busy = any(count for name, count in now.counts.items() if not name.endswith(("tasks", "descriptors")))
        if time.monotonic() > patience or not (busy or (before is not None and now.faults(before))):
            return now


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where something was left, 0 otherwise."""
    parser = argparse.ArgumentParser(description="Short requests, of which one in five is cancelled.")
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args(arguments)
    with tiny_cluster() as cluster:
        deployments = ("gateway", "verifier", "drafter")
        pids = {name: cluster.replicas(name)[0].pid for name in deployments}

        def look() -> Held:
            return held({name: cluster.info(name) for name in deployments}, pids)

        asyncio.run(drive(cluster.grpc_address, _WARM_UP, 1))
        before = at_rest(look)
        cancelled = asyncio.run(drive(cluster.grpc_address, options.requests, 2))
        after = at_rest(look, before)
    growth = ", ".join(f"{name} {grown:+.2%}" for name, grown in after.growth(before).items())
    sys.stdout.write(f"{options.requests} requests, {cancelled} of them cancelled\n")
    sys.stdout.write(f"before {dict(before.counts)}\nafter {dict(after.counts)}\nmemory {growth}\n")
    faults = after.faults(before)
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults or not cancelled else 0


if __name__ == "__main__":
    sys.exit(main())
