"""Commits joined on their way out: nothing lost, nothing late that ends an answer."""

import asyncio

from cluster.speculation.request import Committed, Failed
from verifier_service.pacing import paced

END = Failed("over")


def commit(number):
    return Committed(f"{number} ", (number,))


async def collect(queue, interval):
    return [event async for event in paced(queue, interval)]


def filled(*events):
    queue = asyncio.Queue()
    for event in events:
        queue.put_nowait(event)
    return queue


async def test_what_is_there_goes_out_at_once_and_the_end_waits_for_nothing():
    events = await asyncio.wait_for(collect(filled(commit(1), commit(2), END), 3600), 60)
    assert "".join(event.text for event in events[:-1]) == "1 2 "
    assert events[-1] == END


async def test_the_first_commit_waits_for_no_other():
    queue = filled(commit(1))
    stream = paced(queue, 3600)
    assert await asyncio.wait_for(anext(stream), 60) == commit(1)
    queue.put_nowait(commit(2))
    queue.put_nowait(commit(3))
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.05)
    assert not following.done()
    queue.put_nowait(END)
    assert await asyncio.wait_for(following, 60) == Committed("2 3 ", (2, 3))
    assert await anext(stream) == END


async def test_commits_go_out_joined_after_the_interval():
    queue = filled(commit(1))
    stream = paced(queue, 0.02)
    assert await anext(stream) == commit(1)
    queue.put_nowait(commit(2))
    queue.put_nowait(commit(3))
    assert await asyncio.wait_for(anext(stream), 60) == Committed("2 3 ", (2, 3))


async def test_text_without_tokens_stays_apart():
    events = await asyncio.wait_for(collect(filled(commit(1), commit(2), Committed("x", ()), END), 3600), 60)
    assert events == [Committed("1 2 ", (1, 2)), Committed("x", ()), END]


async def test_without_an_interval_nothing_is_held_back():
    queue = filled()
    stream = paced(queue, 0)
    for number in range(3):
        queue.put_nowait(commit(number))
        assert await asyncio.wait_for(anext(stream), 60) == commit(number)


async def test_no_commit_is_lost_between_intervals():
    queue = asyncio.Queue()

    async def produce():
        for number in range(400):
            queue.put_nowait(commit(number))
            await asyncio.sleep(0 if number % 3 else 0.0007)
        queue.put_nowait(END)

    producer = asyncio.ensure_future(produce())
    events = await asyncio.wait_for(collect(queue, 0.001), 60)
    await producer
    assert [token for event in events[:-1] for token in event.token_ids] == list(range(400))
    assert len(events) > 3
