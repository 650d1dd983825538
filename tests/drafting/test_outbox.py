import asyncio

from cluster.drafting.outbox import MOST_BYTES, Outbox
from truedraft.v1 import drafting_pb2 as pb


def close(number, size=0):
    return pb.Close(sequence=number, reason="x" * size)


async def test_what_waits_is_taken_together_and_in_order():
    outbox = Outbox()
    for number in range(5):
        outbox.put(close(number))
    assert [each.sequence for each in await outbox.take()] == [0, 1, 2, 3, 4]


async def test_a_lone_message_is_taken_at_once_and_later_ones_after_it():
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put(close(1))
    assert [each.sequence for each in await taking] == [1]
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.put(close(2))
    assert [each.sequence for each in await taking] == [2]


async def test_what_is_taken_together_stays_far_below_what_grpc_takes():
    outbox = Outbox()
    sizes = [MOST_BYTES // 3] * 4 + [3 * MOST_BYTES, 0, 0]
    for number, size in enumerate(sizes):
        outbox.put(close(number, size))
    taken = []
    while sum(map(len, taken)) < len(sizes):
        taken.append([each.sequence for each in await outbox.take()])
    assert taken == [[0, 1], [2, 3], [4], [5, 6]]
