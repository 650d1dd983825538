"""Drafting over real gRPC, against the real server and a killed one."""

import asyncio

import pytest

from tests.drafting.helpers import VOCAB, ScriptedDrafter, expected, spec
from tests.verifier_service.drafting.wire import Side, good, misbehaving, server, side
from truedraft.v1 import drafting_pb2 as pb
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.remote import HelloInfo


async def test_blocks_continue_the_committed_prefix():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        verifier.open()
        for committed in ((), (7,), (8, 9, 10)):
            verifier.ask(committed=committed)
            reply = await verifier.reply()
            assert reply.plan_id == verifier.plan
            assert reply.block.tokens == expected(verifier.texts[1], 4)
            assert reply.drafter.replica == "drafter-1"
        assert not verifier.remote.dropped


@pytest.mark.parametrize("certain", [False, True])
async def test_a_drafter_is_asked_for_what_its_context_holds_and_says_whether_it_draws(certain):
    drafter = ScriptedDrafter()
    drafter.context, drafter.certain = 5, certain
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open()
        for committed, asked in (((), 3), ((7, 8), 1), ((9,), 0)):
            verifier.ask(committed=committed)
            reply = await verifier.reply()
            assert reply.block.tokens == expected(verifier.texts[1], asked)
            assert (reply.asked, reply.certain) == (asked, certain)
            assert not reply.depends_on_draws(4, ruled=False)
        assert [job.length for [job] in drafter.calls] == [3, 1, 0]


async def test_two_verifiers_may_number_their_sequences_alike():
    async with (
        server(ScriptedDrafter()) as running,
        side(running.address) as one,
        side(running.address) as other,
    ):
        one.open(prompt=(1,))
        other.open(prompt=(2,))
        one.ask()
        other.ask()
        assert (await one.reply()).block.tokens == expected([1], 4)
        assert (await other.reply()).block.tokens == expected([2], 4)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (HelloInfo("another", VOCAB, "t", "1", "v"), ("tokenizer-mismatch", "another", "hash")),
        (HelloInfo("hash", 17, "t", "1", "v"), ("vocabulary-mismatch", "17", str(VOCAB))),
    ],
)
async def test_a_mismatch_is_refused_in_words_and_costs_rounds_only(hello, words):
    async with server(ScriptedDrafter()) as running, side(running.address, hello, "refused") as verifier:
        assert all(word in verifier.remote.state for word in words)
        verifier.open()
        verifier.ask()
        reply = await verifier.reply()
        assert (reply.block, reply.fallback) == (None, Fallback.NO_DRAFTER)


async def test_a_failing_draft_is_a_fault_and_the_next_one_works():
    drafter = ScriptedDrafter()
    drafter.poison = {66}
    async with server(drafter) as running, side(running.address) as verifier:
        verifier.open(1)
        verifier.open(2, prompt=(5,))
        verifier.ask(1, committed=(66,))
        assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        verifier.ask(2)
        assert (await verifier.reply()).block.tokens == expected([5], 4)
        verifier.ask(1, committed=(4,))
        assert (await verifier.reply()).block is not None


async def test_a_lost_drafter_resets_its_tickets_and_the_next_one_takes_over():
    drafter = ScriptedDrafter()
    drafter.gate.clear()
    async with server(drafter) as first:
        port = int(first.address.rsplit(":", 1)[1])
        verifier = Side(first.address)
        try:
            await verifier.until("connected")
            verifier.open()
            verifier.ask(committed=(9,))
            await asyncio.to_thread(drafter.entered.wait, 10)
            stopping = asyncio.create_task(first.stop())
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.STREAM_RESET)
            # It may have died of what it drew.
            assert reply.depends_on_draws(4, ruled=False)
            drafter.gate.set()
            await stopping
            verifier.ask(committed=(10,))
            assert (await verifier.reply()).fallback is Fallback.NO_DRAFTER
            async with server(ScriptedDrafter(), ports=(port, port)):
                await verifier.until("connected")
                verifier.ask(committed=(11,))
                # Opened anew from all that was committed, rounds without a drafter included.
                assert (await verifier.reply()).block.tokens == expected([1, 2, 3, 9, 10, 11], 4)
        finally:
            drafter.gate.set()
            await verifier.remote.aclose()


async def test_the_drafter_is_told_a_key_and_never_the_seed():
    seen = []
    async with misbehaving(lambda plan, opened: seen.append(opened) or [good(plan)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            await verifier.reply()
    [opened] = seen
    assert opened.noise_key == spec().noise_key
    assert "seed" not in pb.Open.DESCRIPTOR.fields_by_name
