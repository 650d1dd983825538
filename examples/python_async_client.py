"""truedraft's client for asyncio: several streams at once, each resumed if its verifier is lost.

Set TRUEDRAFT_ENDPOINT, by default 127.0.0.1:9000, and TRUEDRAFT_API_KEY where keys are asked for.
"""

import asyncio
import os

from cluster.client import Answer, Ask, AsyncClient, take

ENDPOINT = os.environ.get("TRUEDRAFT_ENDPOINT", "127.0.0.1:9000")


async def main() -> None:
    key = os.environ.get("TRUEDRAFT_API_KEY", "")
    async with AsyncClient(ENDPOINT, timeout=120, retries=5, api_key=key) as client:

        async def ask(question: str) -> Answer:
            answer = Answer()
            async for response in client.stream(Ask(messages=[("user", question)], max_tokens=32, seed=7)):
                take(answer, response)
            return answer

        questions = ["Name three rivers.", "Name three hills."]
        for question, answer in zip(questions, await asyncio.gather(*map(ask, questions)), strict=True):
            provenance = answer.final.provenance
            print(f"{question} {answer.text}")
            print(f"law {provenance.effective_law}, claim {provenance.claim}, {provenance.rounds} rounds")


asyncio.run(main())
