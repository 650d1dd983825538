"""What prefix-affine routing finds: conversations over two verifiers, each turn beginning with all that was
said before it, with the gateway's router and with Serve's own:

    python -m cluster.checks.affinity
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ray import serve

from cluster.applications import APPLICATION, serving
from cluster.checks.tiny_cluster import tiny_cluster
from cluster.client import Ask, AsyncClient

_CONVERSATIONS, _TURNS, _AT_A_TIME = 48, 5, 8
# Tokens of a first turn, of what each later one adds, and of each answer; the model's context holds all.
_FIRST, _MORE, _ANSWER = 128, 48, 16


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens of prompts: in all, found computed, and said before in the same conversation."""

    tokens: int
    found: int
    known: int

    @property
    def rate(self) -> float:
        """Of what was said before, the share that was not computed again."""
        return self.found / self.known


async def converse(endpoint: str, vocab: int, seed: int) -> Hits:
    """Conversations of random tokens, so many at a time."""
    places, hits = asyncio.Semaphore(_AT_A_TIME), Hits(0, 0, 0)
    async with AsyncClient(endpoint, timeout=120) as client:

        async def one(number: int) -> Hits:
            async with places:
                return await _conversation(client, vocab, random.Random(f"{seed} {number}"))

        for each in await asyncio.gather(*map(one, range(_CONVERSATIONS))):
            hits = Hits(hits.tokens + each.tokens, hits.found + each.found, hits.known + each.known)
    return hits


async def _conversation(client: AsyncClient, vocab: int, chance: random.Random) -> Hits:
    said: list[int] = []
    tokens = found = known = 0
    for turn in range(_TURNS):
        known += len(said)
        # The first ids may be special.
        said += [chance.randrange(10, vocab) for _ in range(_MORE if turn else _FIRST)]
        answer = await client.answer(Ask(prompt_ids=said, temperature=0.0, max_tokens=_ANSWER))
        assert answer.final is not None
        tokens += answer.final.usage.input_tokens
        found += answer.final.usage.cached_input_tokens
        said += answer.token_ids
        # Somebody reads and writes: the turns of a conversation are not one after the other.
        await asyncio.sleep(chance.uniform(0.0, 0.3))
    return Hits(tokens, found, known)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where the router finds no more than Serve's own, 0 otherwise."""
    argparse.ArgumentParser(description="Hits of prefix-affine routing.").parse_args(arguments)
    words = [
        "drafter.mode=off",
        "verifier.threads=1",
        "verifier.replicas=2",
        "verifier.placement.num_gpus=0.5",
    ]
    with tiny_cluster(*words) as cluster:
        affine = asyncio.run(converse(cluster.grpc_address, 500, seed=1))
        serve.run(serving(cluster.config, affine=False), name=APPLICATION, route_prefix="/")
        serves_own = asyncio.run(converse(cluster.grpc_address, 500, seed=1))
    for name, hits in (("prefix-affine", affine), ("Serve's own", serves_own)):
        sys.stdout.write(
            f"{name}: {hits.found} of {hits.known} tokens that had been said before were found computed "
            f"({hits.rate:.0%}), of {hits.tokens} in all\n"
        )
    return 0 if affine.rate > serves_own.rate else 1


if __name__ == "__main__":
    sys.exit(main())
