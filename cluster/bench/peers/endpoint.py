"""A peer behind OpenAI's chat route: our gateway and vLLM's server are asked in the same way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from cluster.bench.speed.peer import Reply, family, resident


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url: of the server, without a path; model: as it calls it; process: of the server, with its
    descendants; strangers: those that are not the server's; extra: more fields of the body; rest: seconds
    that it goes on using the processor after an answer, in which nobody else is timed."""

    name: str
    url: str
    model: str
    process: int
    strangers: frozenset[int] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)
    rest: float = 0.0
    most: int = 0

    def ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        replies = asyncio.run(self._ask(prompts, tokens))
        time.sleep(self.rest)
        return replies

    def memory(self) -> int:
        return resident(family(self.process) - self.strangers)

    async def _ask(self, prompts: Sequence[str], tokens: int) -> list[Reply]:
        # Neither time nor the number of connections is limited.
        unlimited = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(self.url, connector=unlimited, timeout=timeout) as session:
            return list(await asyncio.gather(*(self._answer(session, each, tokens) for each in prompts)))

    async def _answer(self, session: aiohttp.ClientSession, prompt: str, tokens: int) -> Reply:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        first, count, began = None, None, time.perf_counter()
        async with session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{self.name} answered {response.status}: {await response.text()}")
            async for line in response.content:
                data = line.strip().removeprefix(b"data: ")
                if not data or data == b"[DONE]":
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise RuntimeError(f"{self.name} broke off an answer: {chunk['error']}")
                if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                    first = time.perf_counter() - began
                if chunk.get("usage"):
                    count = int(chunk["usage"]["completion_tokens"])
        if count is None:
            raise RuntimeError(f"{self.name} ended an answer without saying how many tokens it has")
        return Reply(count, first, time.perf_counter() - began)
