"""An answer's events, a few commits at a time: a message costs the cluster more than a client gains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from cluster.speculation.request import Committed, GenerationEvent


async def paced(events: asyncio.Queue[GenerationEvent], interval: float) -> AsyncIterator[GenerationEvent]:
    """Hands commits on at most once in `interval` seconds, joined; the first, and those before an event that
    ends the answer, at once. Ends with that event.
    """
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        event = await events.get()
        commits: list[Committed] = []
        try:
            async with asyncio.timeout_at(due):
                while isinstance(event, Committed):
                    commits.append(event)
                    event = await events.get()
        except TimeoutError:
            pass
        if len(commits) > 1 and not commits[-1].token_ids:
            # Text without tokens counts with the end alone (text.py), and must be told apart.
            yield _joined(commits[:-1])
            commits = commits[-1:]
        if commits:
            yield _joined(commits)
            due = loop.time() + interval
        if not isinstance(event, Committed):
            yield event
            return


def _joined(commits: Sequence[Committed]) -> Committed:
    return Committed(
        "".join(commit.text for commit in commits),
        tuple(token for commit in commits for token in commit.token_ids),
        tuple(logprob for commit in commits for logprob in commit.logprobs),
        next((commit.so_far for commit in reversed(commits) if commit.so_far is not None), None),
    )
