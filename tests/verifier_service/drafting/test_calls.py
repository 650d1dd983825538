import asyncio
import threading

from tests.drafting.helpers import until
from verifier_service.drafting.calls import Calls


class Waking:
    """An event loop, and how often it was woken."""

    def __init__(self, loop):
        self._loop = loop
        self.times = 0

    def is_closed(self):
        return self._loop.is_closed()

    def call_soon_threadsafe(self, function):
        self.times += 1
        self._loop.call_soon_threadsafe(function)


async def test_calls_that_wait_together_are_made_in_order_after_one_wake_up():
    loop, made = Waking(asyncio.get_running_loop()), []
    calls = Calls(loop)
    for wave in range(2):
        for number in range(5):
            assert calls.leave(made.append, (wave, number))
        await asyncio.sleep(0)
    assert made == [(wave, number) for wave in range(2) for number in range(5)]
    assert loop.times == 2


async def test_calls_are_held_until_all_that_belong_together_are_left():
    loop, made = Waking(asyncio.get_running_loop()), []
    calls = Calls(loop)
    calls.hold()
    for number in range(3):
        assert calls.leave(made.append, number)
        await asyncio.sleep(0)
    assert not made
    assert not loop.times
    calls.send()
    await asyncio.sleep(0)
    assert (made, loop.times) == ([0, 1, 2], 1)
    calls.hold()
    calls.send()
    assert loop.times == 1
    # What comes later need not wait.
    assert calls.leave(made.append, 3)
    assert loop.times == 2


async def test_no_call_of_another_thread_is_forgotten():
    calls, made = Calls(asyncio.get_running_loop()), []

    def leave():
        for number in range(20_000):
            calls.leave(made.append, number)

    thread = threading.Thread(target=leave)
    thread.start()
    await until(lambda: len(made) == 20_000)
    thread.join()
    assert made == list(range(20_000))


async def test_a_call_that_fails_harms_no_other(caplog):
    calls, made = Calls(asyncio.get_running_loop()), []
    calls.leave(made.index, "nowhere")
    calls.leave(made.append, 1)
    await asyncio.sleep(0)
    assert made == [1]
    assert "a call could not be made" in caplog.text


def test_a_closed_loop_takes_none():
    loop = asyncio.new_event_loop()
    calls = Calls(loop)
    assert calls.leave(print)
    loop.close()
    assert not calls.leave(print)
