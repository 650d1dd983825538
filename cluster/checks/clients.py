"""The check of many clients, every third of which disconnects at any moment. The others get whole answers,
and afterwards no sequence is left:

    python -m cluster.checks.clients --clients 64 --minutes 2
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from cluster.bench.prompts import SHORT
from cluster.checks.tiny_cluster import tiny_cluster
from cluster.client import Ask, AsyncClient, RequestFailedError
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc

_EVERY = 3
# GetStatus is some seconds old at most.
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Outcome:
    """whole: complete answers; left: streams that were cancelled by their clients; errors: of the other
    clients; active, queued, in_flight: what the status says at the end."""

    whole: int = 0
    left: int = 0
    errors: list[str] = field(default_factory=list)
    active: int = 0
    queued: int = 0
    in_flight: int = 0

    @property
    def good(self) -> bool:
        """Whether the clients that stayed were served, and nothing is left of the others."""
        return bool(self.whole and self.left) and not (
            self.errors or self.active or self.queued or self.in_flight
        )


async def ask_and_leave(endpoint: str, clients: int, seconds: float, api_key: str = "") -> Outcome:
    """clients: at a time, on a connection each."""
    outcome, until = Outcome(), time.monotonic() + seconds
    metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
    await asyncio.gather(*(_client(endpoint, number, until, api_key, outcome) for number in range(clients)))
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        patience = time.monotonic() + _PATIENCE_S
        while True:
            status = await stub.GetStatus(pb.GetStatusRequest(), metadata=metadata, timeout=30)
            outcome.active, outcome.queued = status.active, status.queued
            outcome.in_flight = status.in_flight
            if not (status.active or status.queued or status.in_flight) or time.monotonic() > patience:
                return outcome
            await asyncio.sleep(1.0)


async def _client(endpoint: str, number: int, until: float, api_key: str, outcome: Outcome) -> None:
    leaves, rng = number % _EVERY == 0, random.Random(number)
    async with AsyncClient(endpoint, timeout=120, api_key=api_key) as client:
        while time.monotonic() < until:
            ask = Ask(prompt=rng.choice(SHORT), max_tokens=rng.randint(8, 64), seed=rng.getrandbits(32))
            answering = asyncio.create_task(client.answer(ask))
            if leaves:
                # Before the first message, in the middle, or after the last.
                done, _ = await asyncio.wait([answering], timeout=rng.choice((0.0, 0.01, 0.1, 0.5, 1.0)))
                if not done:
                    answering.cancel()
            try:
                await answering
                outcome.whole += 1
            except asyncio.CancelledError:
                outcome.left += 1
            except RequestFailedError as error:
                outcome.errors.append(f"client {number}: {error.code} {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where a client was disturbed or a sequence was left, 0 otherwise."""
    parser = argparse.ArgumentParser(description="Many clients, every third of which disconnects.")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args(arguments)
    with tiny_cluster() as cluster:
        outcome = asyncio.run(ask_and_leave(cluster.grpc_address, options.clients, 60 * options.minutes))
    sys.stdout.write(f"{outcome}\n")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
