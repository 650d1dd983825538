"""What goes out together, and what at once."""

import asyncio

import pytest

from cluster.gateway.http.app import _events
from cluster.gateway.http.responses import Completions
from truedraft.v1 import inference_pb2 as pb


async def several(*messages):
    for message in messages:
        yield message
    # Nothing else comes as long as anybody looks.
    await asyncio.Event().wait()


@pytest.mark.parametrize("count", [1, 2])
async def test_an_end_is_held_back_for_usage_alone(count):
    """Not for another answer, which may still be queued."""
    end = pb.Answer(index=0, finish_reason=pb.FINISH_REASON_LENGTH)
    events = _events(end, several(), Completions("m", count), count, True)
    following = asyncio.ensure_future(anext(events))
    done, _ = await asyncio.wait([following], timeout=0.2)
    assert bool(done) == (count == 2)
    if done:
        assert b'"finish_reason":"length"' in following.result()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
