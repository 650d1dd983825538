"""Streams of a drafting server: how they begin, what they share, how they end."""

import asyncio

import grpc
import pytest

from cluster.drafting.wire import PROTOCOL_VERSION
from drafter_service.server import DraftingServer
from tests.drafter_service.peer import peer
from tests.drafting.helpers import VOCAB, expected, until
from truedraft.v1 import drafting_pb2 as pb


async def test_what_is_wanted_of_it_is_its_load(server, drafter):
    async with peer(server) as verifier:
        drafter.gate.clear()
        for sequence in (0, 1):
            await verifier.open([1, 2], sequence)
            await verifier.plan([1, 2], sequence=sequence)
        await until(lambda: server.load.wanted == 2)
        server.load.average()
        await asyncio.sleep(0.05)
        assert server.load.average() == 2.0
        drafter.gate.set()
        for _ in range(2):
            assert isinstance(await verifier.hear(), pb.Block)
        assert server.load.wanted == 0
        server.load.average()
        await asyncio.sleep(0.01)
        assert server.load.average() == 0.0


async def test_welcome_says_who_drafts_and_each_start_is_another_incarnation(server, drafter, spans):
    async with peer(server, hello=False) as verifier:
        welcome = await verifier.hello()
    assert (welcome.drafter_model, welcome.drafter_revision, welcome.drafter_kind) == (
        "scripted",
        "r1",
        "scripted",
    )
    assert welcome.drafter_replica == "replica-1"
    other = DraftingServer(drafter, "abc", VOCAB, "replica-1", None)
    assert welcome.incarnation not in (0, other._welcome(1).incarnation)


@pytest.mark.parametrize(
    ("changes", "code", "both"),
    [
        ({"protocol_version": 99}, pb.FAULT_CODE_PROTOCOL_VERSION, ("99", str(PROTOCOL_VERSION))),
        ({"tokenizer_hash": "xyz"}, pb.FAULT_CODE_TOKENIZER_MISMATCH, ("xyz", "abc")),
        ({"vocab_size": 7}, pb.FAULT_CODE_VOCABULARY_MISMATCH, ("7", str(VOCAB))),
    ],
)
async def test_a_mismatch_is_refused_by_name_and_ends_the_stream(server, changes, code, both):
    async with peer(server, hello=False) as verifier:
        fault = await verifier.hello(**changes)
        assert (fault.code, fault.epoch) == (code, 0)
        assert all(value in fault.detail for value in both)
        assert await verifier.hear() is grpc.aio.EOF


async def test_a_stream_that_does_not_begin_with_hello_is_refused(server):
    async with peer(server, hello=False) as verifier:
        await verifier.open([1])
        assert (await verifier.greeting()).code == pb.FAULT_CODE_INVALID_MESSAGE
        assert await verifier.hear() is grpc.aio.EOF


async def test_two_streams_may_use_the_same_numbers(server, drafter):
    async with peer(server) as first, peer(server) as second:
        await first.open([1, 2])
        await second.open([5, 6, 7])
        await first.plan([1, 2], [3])
        await second.plan([5, 6, 7], [8])
        assert tuple((await first.hear()).ids) == expected([1, 2, 3], 4)
        assert tuple((await second.hear()).ids) == expected([5, 6, 7, 8], 4)
        await second.say(close=pb.Close(sequence=0, epoch=1))
        await until(lambda: len(drafter.texts) == 1)
        await first.plan([1, 2, 3], [4])
        assert tuple((await first.hear()).ids) == expected([1, 2, 3, 4], 4)


async def test_the_end_of_a_stream_closes_its_sessions(server, drafter):
    async with peer(server) as verifier, peer(server) as other:
        for stream in (verifier, other):
            await stream.open([1])
            await stream.plan([1])
            await stream.hear()
        assert len(drafter.texts) == 2
        await verifier.call.done_writing()
        assert await verifier.hear() is grpc.aio.EOF
        await until(lambda: len(drafter.texts) == 1)
        other.call.cancel()
        await until(lambda: not drafter.texts)


async def test_a_stream_that_is_cut_while_drafting_harms_no_other(server, drafter):
    async with peer(server) as cut, peer(server) as other:
        await cut.open([1])
        await other.open([2])
        drafter.gate.clear()
        await cut.plan([1])
        await until(drafter.entered.is_set)
        cut.call.cancel()
        await other.plan([2])
        drafter.gate.set()
        assert tuple((await other.hear()).ids) == expected([2], 4)
        await until(lambda: len(drafter.texts) == 1)


async def test_ports_are_taken_from_the_range(drafter):
    first = DraftingServer(drafter, "abc", VOCAB, "a", None)
    port = int((await first.start()).rpartition(":")[2])
    second = DraftingServer(drafter, "abc", VOCAB, "b", None)
    try:
        with pytest.raises(RuntimeError, match=f"{port}..{port}"):
            await second.start(ports=(port, port))
        taken = int((await second.start(ports=(port, port + 50))).rpartition(":")[2])
        assert port < taken <= port + 50
    finally:
        await first.stop()
        await second.stop()
