"""The check of rolling restarts: under traffic without a pause Serve first adds a drafter and a verifier,
since one of each has too much to do, then replaces the drafters one by one, then gateways and verifiers.
Every answer has the tokens that it has undisturbed, or ends with UNAVAILABLE:

    python -m cluster.checks.restarts
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cluster.app import Running
from cluster.checks.losses import Outcome, asked_until, plain_answers
from cluster.checks.tiny_cluster import tiny_cluster
from cluster.client import AsyncClient

# In seconds: for a role to be as it should, and of traffic after the last of them is.
_PATIENCE_S, _AFTER_S = 240.0, 10.0
ROLES = ("drafter", "verifier")


@dataclass(slots=True)
class Restarted:
    """answers: of the whole time; stages: what was done, and for how many seconds; spread: sequences of a
    verifier by drafter, after drafters were added; faults: what did not come about, in words."""

    answers: Outcome = field(default_factory=Outcome)
    stages: list[tuple[str, float]] = field(default_factory=list)
    spread: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults and not self.answers.faults and self.answers.whole > 0

    def __str__(self) -> str:
        stages = ", ".join(f"{what} in {seconds:.0f} s" for what, seconds in self.stages)
        faults = [*self.faults, *self.answers.faults]
        return (
            f"{stages}; {self.answers.whole} answers whole, {self.answers.resumed} of them resumed, "
            f"{self.answers.unavailable} UNAVAILABLE, claims {dict(self.answers.claims)}, "
            f"sequences by drafter {sorted(self.spread.values())}, {len(faults)} faults {faults[:5]}"
        )


async def survive(cluster: Running, grown: int) -> Restarted:
    """grown: replicas of each role that traffic has Serve add up to before any is restarted."""
    found, over = Restarted(), asyncio.Event()
    async with AsyncClient(cluster.grpc_address, timeout=300) as client:
        truths = await plain_answers(client)
        traffic = asyncio.create_task(asked_until(client, truths, over.is_set, found.answers))
        try:
            for role in ROLES:
                await _stage(found, f"{grown} {role}s", partial(_counts, cluster, role, grown))
            spread: dict[str, int] = {}

            def shared() -> bool:
                spread.update(cluster.info("verifier")["drafters"])
                return sum(sessions > 0 for sessions in spread.values()) == grown

            await _stage(found, "both drafters in use", shared)
            found.spread = dict(spread)
            for role in ROLES:
                old = {each.replica for each in cluster.replicas(role)}
                await asyncio.to_thread(cluster.restart, role)

                def replaced(role: str = role, old: set[str] = old) -> bool:
                    now = {each.replica for each in cluster.replicas(role)}
                    return len(now) == len(old) and not now & old

                await _stage(found, f"{role}s replaced", replaced)
            await asyncio.sleep(_AFTER_S)
        finally:
            over.set()
            await traffic
    return found


async def _stage(found: Restarted, what: str, there: Callable[[], bool]) -> None:
    """Waits until it is so, or gives up and says that it never was."""
    seconds = await asyncio.to_thread(_waited, there)
    if seconds is None:
        found.faults.append(f"not within {_PATIENCE_S:g} s: {what}")
    else:
        found.stages.append((what, seconds))


def _waited(there: Callable[[], bool]) -> float | None:
    began = time.monotonic()
    while time.monotonic() < began + _PATIENCE_S:
        if there():
            return time.monotonic() - began
        time.sleep(0.5)
    return None


def _counts(cluster: Running, role: str, replicas: int) -> bool:
    return len(cluster.replicas(role)) == replicas


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where an answer differs or fails otherwise, or a role was not scaled or replaced."""
    argparse.ArgumentParser(description="Answers while Serve adds and replaces replicas.").parse_args(
        arguments
    )
    words = ["gateway.replicas=2", "verifier.threads=1", "verifier.max_active=6"]
    words += ["drafter.kind=causal_lm", "drafter.threads=1", "drafter.target_blocks=1"]
    for role in ROLES:
        words += [f"{role}.max_replicas=2", f"{role}.placement.num_gpus=0.3"]
    with tiny_cluster(*words) as cluster:
        found = asyncio.run(survive(cluster, 2))
    sys.stdout.write(f"{found}\n")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
