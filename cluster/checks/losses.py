"""The check of lost verifiers: one of two is killed again and again while answers stream. Each either has the
tokens that it has undisturbed, or ends with UNAVAILABLE:

    python -m cluster.checks.losses --minutes 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cluster.bench.prompts import SHORT
from cluster.checks.tiny_cluster import tiny_cluster
from cluster.client import Answer, Ask, AsyncClient, RequestFailedError

_CLIENTS = 16
_LAWS = ("coupled", "none")


@dataclass(slots=True)
class Outcome:
    """whole: answers with the right tokens, of which `resumed` lost a verifier, `losses` by how many; faults:
    answers that are neither whole nor UNAVAILABLE, in words."""

    kills: int = 0
    whole: int = 0
    resumed: int = 0
    unavailable: int = 0
    losses: Counter[int] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether verifiers were lost in the middle of answers, and no answer differs for it."""
        return bool(self.resumed) and not self.faults

    def judge(self, answer: Answer, truth: Sequence[int]) -> None:
        """Takes note of a whole answer. truth: its tokens by plain decoding, undisturbed."""
        assert answer.final is not None
        provenance, usage = answer.final.provenance, answer.final.usage
        counted = provenance.accepted_tokens + provenance.correction_tokens + provenance.bonus_tokens
        if list(answer.token_ids) != list(truth):
            self.faults.append(f"other tokens under {provenance.effective_law}")
        elif usage.output_tokens != len(truth):
            self.faults.append(f"{len(truth)} tokens, and usage says {usage.output_tokens}")
        elif counted != len(truth):
            self.faults.append(f"{len(truth)} tokens, and provenance counts {counted}")
        else:
            self.whole += 1
        self.claims[provenance.claim] += 1
        if provenance.verifiers_lost:
            self.resumed += 1
            self.losses[provenance.verifiers_lost] += 1


def asks() -> list[Ask]:
    """Long enough for a verifier to die in the middle."""
    return [
        Ask(prompt=text, temperature=temperature, max_tokens=300, seed=7, law=law)
        for text in SHORT
        for temperature in (0.0, 1.0)
        for law in _LAWS
    ]


async def survive(endpoint: str, kill: Callable[[], bool], seconds: float, every: float) -> Outcome:
    """kill: ends a verifier, unless it is the only one; called every `every` seconds."""
    outcome = Outcome()
    async with AsyncClient(endpoint, timeout=120) as client:
        truths = await plain_answers(client)
        until = time.monotonic() + seconds
        kills = asyncio.create_task(_kill(kill, every, outcome))
        await asked_until(client, truths, lambda: time.monotonic() >= until, outcome)
        kills.cancel()
    return outcome


async def plain_answers(client: AsyncClient) -> list[list[int]]:
    """What `asks` are answered without speculation, undisturbed."""
    plain = [replace(ask, law="none") for ask in asks()]
    return [list((await client.answer(ask)).token_ids) for ask in plain]


async def asked_until(
    client: AsyncClient, truths: Sequence[Sequence[int]], over: Callable[[], bool], outcome: Outcome
) -> None:
    """Clients that ask one after the other; every answer is judged."""
    await asyncio.gather(*(_ask(client, number, truths, over, outcome) for number in range(_CLIENTS)))


async def _kill(kill: Callable[[], bool], every: float, outcome: Outcome) -> None:
    while True:
        await asyncio.sleep(every)
        outcome.kills += await asyncio.to_thread(kill)


async def _ask(
    client: AsyncClient,
    number: int,
    truths: Sequence[Sequence[int]],
    over: Callable[[], bool],
    outcome: Outcome,
) -> None:
    chance = random.Random(number)
    while not over():
        ask, truth = chance.choice(list(zip(asks(), truths, strict=True)))
        try:
            answer = await client.answer(ask)
        except RequestFailedError as error:
            if error.code == "UNAVAILABLE":
                outcome.unavailable += 1
            else:
                outcome.faults.append(f"{error.code} {error}")
            continue
        outcome.judge(answer, truth)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where an answer differs or fails otherwise, or where none lost its verifier; 0 otherwise."""
    parser = argparse.ArgumentParser(description="Answers whose verifiers are killed.")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=12.0, help="seconds between two deaths")
    options = parser.parse_args(arguments)
    with tiny_cluster(
        "verifier.replicas=2", "verifier.placement.num_gpus=0.5", "verifier.threads=1"
    ) as cluster:

        def kill() -> bool:
            verifiers = cluster.replicas("verifier")
            if len(verifiers) < 2:
                return False
            os.kill(random.choice(verifiers).pid, signal.SIGKILL)
            return True

        outcome = asyncio.run(survive(cluster.grpc_address, kill, 60 * options.minutes, options.every))
    sys.stdout.write(f"{outcome}\n")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
