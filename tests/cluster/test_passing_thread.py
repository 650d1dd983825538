"""Work in a thread of its own, which is gone afterwards."""

import threading

import pytest

from cluster.passing_thread import in_passing_thread


async def test_the_thread_ends_with_its_work():
    def work(left, *, right):
        return threading.current_thread(), left + right

    thread, total = await in_passing_thread(work, 2, right=3)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert total == 5


async def test_what_the_work_raises_comes_through():
    def fail():
        raise ValueError("no model")

    with pytest.raises(ValueError, match="no model"):
        await in_passing_thread(fail)
