"""Commits joined on their way out: nothing lost, nothing late that ends an answer."""

import asyncio
import threading
import time

from cluster.speculation.request import Committed, Failed
from verifier_service.requests.pacing import Outbox

END = Failed("over")


def commit(number):
    return Committed(f"{number} ", (number,))


async def collect(box):
    return [event async for together in box.paced() for event in together]


def filled(interval, *events):
    box = Outbox(interval)
    for event in events:
        box.put(event)
    return box


async def test_what_is_there_goes_out_at_once_and_the_end_waits_for_nothing():
    events = await asyncio.wait_for(collect(filled(3600, commit(1), commit(2), END)), 60)
    assert events == [Committed("1 2 ", (1, 2)), END]


async def test_the_first_commit_waits_for_no_other():
    box = filled(3600, commit(1))
    stream = box.paced()
    assert await asyncio.wait_for(anext(stream), 60) == (commit(1),)
    box.put(commit(2))
    box.put(commit(3))
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.05)
    assert not following.done()
    box.put(END)
    # Together, since each message costs.
    assert await asyncio.wait_for(following, 60) == (Committed("2 3 ", (2, 3)), END)


async def test_commits_go_out_joined_after_the_interval():
    box = filled(0.02, commit(1))
    stream = box.paced()
    assert await anext(stream) == (commit(1),)
    box.put(commit(2))
    box.put(commit(3))
    assert await asyncio.wait_for(anext(stream), 60) == (Committed("2 3 ", (2, 3)),)


async def test_a_commit_wakes_who_waits_for_it():
    box = filled(0.001)
    stream = box.paced()
    for number in range(3):
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        assert not following.done()
        box.put(commit(number))
        assert await asyncio.wait_for(following, 60) == (commit(number),)


async def test_between_two_messages_the_loop_is_left_alone(monkeypatch):
    woken = []
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: woken.append(args) or wake(*args))
    box = filled(3600, commit(0))
    stream = box.paced()
    await anext(stream)
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    for number in range(50):
        box.put(commit(number))
        await asyncio.sleep(0)
    assert len(woken) <= 1
    box.put(END)
    commits, end = await asyncio.wait_for(following, 60)
    assert (len(commits.token_ids), end) == (50, END)
    assert len(woken) <= 2


async def test_text_without_tokens_stays_apart():
    events = await asyncio.wait_for(collect(filled(3600, commit(1), commit(2), Committed("x", ()), END)), 60)
    assert events == [Committed("1 2 ", (1, 2)), Committed("x", ()), END]


async def test_without_an_interval_nothing_is_held_back():
    box = filled(0)
    stream = box.paced()
    for number in range(3):
        box.put(commit(number))
        assert await asyncio.wait_for(anext(stream), 60) == (commit(number),)


async def test_no_commit_of_another_thread_is_lost_between_intervals():
    boxes = [Outbox(interval) for interval in (0, 0.0005, 0.001)]

    def produce():
        for number in range(2000):
            for box in boxes:
                box.put(commit(number))
            if number % 3 == 0:
                time.sleep(0.0001)
        for box in boxes:
            box.put(END)

    producer = threading.Thread(target=produce)
    producer.start()
    answers = await asyncio.wait_for(asyncio.gather(*map(collect, boxes)), 60)
    producer.join()
    for events in answers:
        assert [token for event in events[:-1] for token in event.token_ids] == list(range(2000))
        assert len(events) > 3
