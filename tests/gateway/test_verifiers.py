"""A verifier's messages as the events that they bring."""

import pytest

from cluster.gateway.verifiers import OneByOne
from cluster.speculation.request import Committed, Failed

ONE, TWO, END = Committed("a", (1,)), Committed("b", (2,)), Failed("over")


class Stream:
    """Of Serve. lost: raised behind the messages."""

    def __init__(self, messages, lost=None):
        self._messages, self._lost = iter(messages), lost
        self.cancelled = False

    async def __anext__(self):
        for message in self._messages:
            return message
        raise self._lost or StopAsyncIteration

    def cancel(self):
        self.cancelled = True


@pytest.mark.parametrize("messages", [[(ONE,), (TWO, END)], [(ONE, TWO, END)], [(ONE,), (TWO,), (END,)]])
async def test_events_come_one_by_one_however_many_were_sent_together(messages):
    assert [event async for event in OneByOne(Stream(messages))] == [ONE, TWO, END]


async def test_what_was_sent_before_a_verifier_was_lost_is_handed_on():
    events = OneByOne(Stream([(ONE, TWO)], ConnectionError()))
    assert [await anext(events), await anext(events)] == [ONE, TWO]
    with pytest.raises(ConnectionError):
        await anext(events)


def test_cancelling_the_events_cancels_the_stream():
    stream = Stream([])
    OneByOne(stream).cancel()
    assert stream.cancelled
