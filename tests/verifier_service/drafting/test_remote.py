"""Drafting over real gRPC: against the real server, a killed one, and one that misbehaves."""

import asyncio
import contextlib

import grpc.aio
import pytest
from opentelemetry.trace import NoOpTracer

from cluster.drafting.wire import PROTOCOL_VERSION, put_proposal
from cluster.speculation.messages import PrefixHash
from cluster.speculation.proposal import SparseRow, pack, unpack
from drafter_service.server import DraftingServer
from tests.drafting.helpers import VOCAB, ScriptedDrafter, expected, spec
from truedraft.v1 import drafting_pb2 as pb
from truedraft.v1 import drafting_pb2_grpc
from verifier_service.drafting.port import DraftTicket, Fallback
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver

HELLO = HelloInfo("hash", VOCAB, "target", "1", "verifier-1")


class Side:
    """A verifier's side of the wire: tickets in, replies out."""

    def __init__(self, address, hello=HELLO):
        self.replies = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.remote = RemoteDrafting(StaticResolver(address), hello, loop)
        self.remote.connect(lambda reply: loop.call_soon_threadsafe(self.replies.put_nowait, reply))
        self.texts = {}
        self.plan = 0

    def open(self, sequence=1, prompt=(1, 2, 3)):
        self.texts[sequence] = list(prompt)
        self.remote.open(spec(sequence, prompt))

    def ask(self, sequence=1, committed=(), length=4, ahead=0):
        text = self.texts[sequence]
        text.extend(committed)
        self.plan += 1
        self.remote.request(
            DraftTicket(
                sequence,
                self.plan,
                tuple(committed),
                len(text),
                PrefixHash(text).digest(),
                length,
                "",
                ahead=ahead,
            )
        )

    async def reply(self):
        return await asyncio.wait_for(self.replies.get(), 10)

    async def until(self, state):
        async with asyncio.timeout(15):
            while not self.remote.state.startswith(state):
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def side(address, hello=HELLO, state="connected"):
    made = Side(address, hello)
    try:
        await made.until(state)
        yield made
    finally:
        await made.remote.aclose()


@contextlib.asynccontextmanager
async def server(drafter, tokenizer_hash="hash", ports=None):
    made = DraftingServer(drafter, tokenizer_hash, VOCAB, "drafter-1", NoOpTracer())
    await made.start("127.0.0.1", ports)
    try:
        yield made
    finally:
        await made.stop()


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


class Misbehaving(drafting_pb2_grpc.DraftingServiceServicer):
    """Answers each plan with what `answer(plan, open)` makes of it."""

    def __init__(self, answer):
        self._answer = answer

    async def Draft(self, requests, context):  # noqa: N802 - the wire's name
        opened = {}
        async for request in requests:
            match request.WhichOneof("message"):
                case "hello":
                    welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, drafter_kind="odd", incarnation=5)
                    yield pb.DraftResponse(welcome=welcome)
                case "open":
                    opened[request.open.sequence] = request.open
                case "plan":
                    for block in self._answer(request.plan, opened[request.plan.sequence]):
                        yield pb.DraftResponse(block=block)


@contextlib.asynccontextmanager
async def misbehaving(answer):
    made = grpc.aio.server()
    drafting_pb2_grpc.add_DraftingServiceServicer_to_server(Misbehaving(answer), made)
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await made.stop(0)


def good(plan, **changes):
    fields = {
        "sequence": plan.sequence,
        "epoch": plan.epoch,
        "plan_id": plan.plan_id,
        "incarnation": 5,
        "prefix_hash": plan.prefix_hash,
        "ids": [1, 2],
        "max_q": [1.0, 1.0],
    }
    return pb.Block(**(fields | changes))


@pytest.mark.parametrize(
    "change",
    [{"plan_id": 99}, {"epoch": 99}, {"sequence": 99}],
    ids=lambda change: next(iter(change)),
)
async def test_a_block_that_answers_nothing_is_dropped_and_counted(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change), good(plan)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            assert (await verifier.reply()).block.tokens == (1, 2)
            assert sum(verifier.remote.dropped.values()) == 1


@pytest.mark.parametrize(
    "change", [{"prefix_hash": b"0" * 16}, {"incarnation": 6}], ids=["prefix", "incarnation"]
)
async def test_a_block_on_another_prefix_or_of_another_life_is_never_verified(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.STALE_BLOCK)
            assert sum(verifier.remote.dropped.values()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1, VOCAB], "max_q": [1.0, 1.0]},
        {"ids": [1] * 5, "max_q": [1.0] * 5},
        {"ids": [1, 2], "max_q": [1.0]},
    ],
    ids=["beyond the vocabulary", "longer than asked", "without a statistic"],
)
async def test_a_malformed_block_is_an_invalid_block(change):
    async with misbehaving(lambda plan, opened: [good(plan, **change)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            reply = await verifier.reply()
            assert (reply.block, reply.fallback) == (None, Fallback.INVALID_BLOCK)


def with_proposal(block, rows, entries=4):
    put_proposal(block, pack(rows), entries)
    return block


ROWS = [SparseRow((1, 9), (0.25, 0.5)), SparseRow((2,), (1.0,))]


async def test_a_proposal_arrives_with_its_block():
    async with misbehaving(lambda plan, opened: [with_proposal(good(plan), ROWS)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            block = (await verifier.reply()).block
            assert unpack(block, VOCAB) == ROWS


@pytest.mark.parametrize(
    "rows",
    [
        [SparseRow((8, 9), (0.5, 0.5)), ROWS[1]],
        [SparseRow((1, VOCAB), (0.5, 0.5)), ROWS[1]],
        [SparseRow((1, 9), (0.5, float("nan"))), ROWS[1]],
        [SparseRow((1, 1), (0.5, 0.5)), ROWS[1]],
    ],
    ids=["its token has no probability", "beyond the vocabulary", "no number", "an id twice"],
)
async def test_a_proposal_that_cannot_have_given_its_block_is_an_invalid_block(rows):
    async with misbehaving(lambda plan, opened: [with_proposal(good(plan), rows)]) as address:
        async with side(address) as verifier:
            verifier.open()
            verifier.ask()
            assert (await verifier.reply()).fallback is Fallback.INVALID_BLOCK


async def test_a_proposal_that_was_cut_on_its_way_is_an_invalid_block():
    def cut(plan, opened):
        block = with_proposal(good(plan), ROWS)
        block.proposal_probs = block.proposal_probs[:-4]
        return [block]

    async with misbehaving(cut) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.INVALID_BLOCK


async def test_a_duplicate_block_is_used_once():
    async with misbehaving(lambda plan, opened: [good(plan), good(plan)]) as address:
        async with side(address) as verifier:
            verifier.open()
            for committed in ((), (1,)):
                verifier.ask(committed=committed)
                assert (await verifier.reply()).plan_id == verifier.plan
            assert verifier.replies.empty()
            assert sum(verifier.remote.dropped.values()) >= 1


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
