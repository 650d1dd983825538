import asyncio
import threading
from collections import deque
from contextlib import asynccontextmanager

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

from cluster.drafting import NgramDrafter
from cluster.drafting.wire import PROTOCOL_VERSION, open_message, take_proposal
from cluster.speculation.messages import PrefixHash
from cluster.telemetry import names
from drafter_service.server import DraftingServer
from tests.drafting.helpers import VOCAB, ScriptedDrafter, expected, spec, until
from truedraft.v1 import drafting_pb2 as pb
from truedraft.v1 import drafting_pb2_grpc


class Peer:
    """A verifier's end of one stream, message by message."""

    def __init__(self, call):
        self.call = call
        self._heard = deque()

    async def say(self, **message):
        await self.say_all(pb.VerifierMessage(**message))

    async def say_all(self, *messages):
        """In one stream message."""
        await self.call.write(pb.DraftRequest(messages=messages))

    async def hear(self):
        while not self._heard:
            response = await self.read()
            if response is grpc.aio.EOF:
                return response
            self._heard.extend(getattr(each, each.WhichOneof("message")) for each in response.messages)
        return self._heard.popleft()

    async def read(self):
        """A whole stream message."""
        return await asyncio.wait_for(self.call.read(), 10)

    async def hello(self, **changes):
        fields = {"protocol_version": PROTOCOL_VERSION, "tokenizer_hash": "abc", "vocab_size": VOCAB}
        await self.call.write(pb.DraftRequest(hello=pb.Hello(**fields | changes)))
        return await self.greeting()

    async def greeting(self):
        response = await self.read()
        return response.fault if response.HasField("fault") else response.welcome

    async def open(self, prompt, sequence=0, epoch=1, **changes):
        message = open_message(spec(sequence, prompt), epoch, list(prompt))
        message.MergeFrom(pb.Open(**changes))
        await self.say(open=message)

    async def plan(
        self, text, committed=(), sequence=0, epoch=1, plan_id=1, length=4, traceparent="", **fields
    ):
        await self.say(
            plan=pb.Plan(
                sequence=sequence,
                epoch=epoch,
                plan_id=plan_id,
                base_committed_len=len(text),
                committed_ids=committed,
                prefix_hash=PrefixHash([*text, *committed]).digest(),
                block_length=length,
                traceparent=traceparent,
                **fields,
            )
        )


@pytest.fixture
def drafter():
    return ScriptedDrafter()


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
async def server(drafter, spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    server = DraftingServer(drafter, "abc", VOCAB, "replica-1", provider.get_tracer("test"))
    await server.start()
    yield server
    drafter.gate.set()
    await server.stop()
    assert not server.healthy
    assert "drafting" not in [thread.name for thread in threading.enumerate()]


@asynccontextmanager
async def peer(server, hello=True):
    async with grpc.aio.insecure_channel(server.address) as channel:
        peer = Peer(drafting_pb2_grpc.DraftingServiceStub(channel).Draft())
        if hello:
            assert isinstance(await peer.hello(), pb.Welcome)
        yield peer
        peer.call.cancel()


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


async def test_a_block_answers_its_plan(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3])
        await verifier.plan([1, 2, 3], plan_id=5)
        block = await verifier.hear()
        assert tuple(block.ids) == expected([1, 2, 3], 4)
        assert list(block.max_q) == [0.5] * 4
        assert (block.sequence, block.epoch, block.plan_id) == (0, 1, 5)
        assert block.prefix_hash == PrefixHash([1, 2, 3]).digest()
        assert block.stop_reason == pb.STOP_REASON_LENGTH
        await verifier.plan([1, 2, 3], [9, 8], plan_id=6, length=2)
        block = await verifier.hear()
        assert tuple(block.ids) == expected([1, 2, 3, 9, 8], 2)


async def test_plans_that_come_together_are_answered_in_order_and_together():
    made = DraftingServer(NgramDrafter(), "abc", VOCAB, "replica-1", NoOpTracer())
    await made.start()
    try:
        async with peer(made) as verifier:
            said, text = [], [1, 2, 3, 1, 2, 3]
            for sequence in range(3):
                opened = open_message(spec(sequence, text), 1, text)
                plan = pb.Plan(
                    sequence=sequence,
                    epoch=1,
                    plan_id=sequence + 1,
                    base_committed_len=len(text),
                    prefix_hash=PrefixHash(text).digest(),
                    block_length=sequence + 1,
                )
                said += [pb.VerifierMessage(open=opened), pb.VerifierMessage(plan=plan)]
            await verifier.say_all(*said, pb.VerifierMessage(close=pb.Close(sequence=1, epoch=1)))
            # A drafter on the loop has drafted for all of them before the first block is written.
            blocks = [each.block for each in (await verifier.read()).messages]
            assert [(each.sequence, list(each.ids)) for each in blocks] == [
                (0, [1]),
                (1, [1, 2]),
                (2, [1, 2, 3]),
            ]
            assert made.sessions == 2
    finally:
        await made.stop()


async def test_a_proposal_goes_with_its_block_in_as_many_entries_as_were_asked_for(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3], law="rejection", proposal_entries=6)
        await verifier.plan([1, 2, 3], length=3)
        block = await verifier.hear()
        assert block.proposal_entries == 6
        proposal = take_proposal(block)
        assert proposal.ids.shape == (3, 6)
        assert tuple(proposal.ids[:, 0].tolist()) == tuple(block.ids)
        assert proposal.probs[:, :2].tolist() == [[0.75, 0.25]] * 3
        assert not proposal.probs[:, 2:].any()


async def test_a_proposal_wider_than_asked_for_is_a_fault_and_the_stream_goes_on(server):
    async with peer(server) as verifier:
        await verifier.open([1, 2, 3], law="block", proposal_entries=1)
        await verifier.plan([1, 2, 3])
        fault = await verifier.hear()
        assert (fault.code, fault.plan_id) == (pb.FAULT_CODE_DRAFTER_FAILED, 1)
        await verifier.open([1], sequence=5)
        await verifier.plan([1], sequence=5)
        assert tuple((await verifier.hear()).ids) == expected([1], 4)


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


async def test_plans_that_wait_share_a_call_and_the_newest_of_a_sequence_wins(server, drafter):
    async with peer(server) as verifier:
        for number in range(3):
            await verifier.open([number], sequence=number)
        drafter.gate.clear()
        await verifier.plan([0], sequence=0)
        await until(drafter.entered.is_set)
        await verifier.plan([1], sequence=1, plan_id=10)
        await verifier.plan([2], sequence=2, plan_id=20)
        await verifier.plan([1], [7], sequence=1, plan_id=11)
        # Answered in order, so the plans before it have been taken as well.
        await verifier.plan([1], sequence=99)
        assert (await verifier.hear()).code == pb.FAULT_CODE_UNKNOWN_SEQUENCE
        drafter.gate.set()
        await verifier.hear()
        blocks = {block.plan_id: tuple(block.ids) for block in [await verifier.hear() for _ in range(2)]}
        assert blocks == {11: expected([1, 7], 4), 20: expected([2], 4)}
        assert len(drafter.calls) == 2


async def test_a_failing_drafter_costs_its_own_plan_alone(server, drafter):
    drafter.poison = {13}
    async with peer(server) as verifier:
        for number in range(3):
            await verifier.open([number, 13 if number == 1 else 5], sequence=number)
        drafter.gate.clear()
        await verifier.plan([0, 5], sequence=0, plan_id=1)
        await until(drafter.entered.is_set)
        for number, text in enumerate([[0, 5], [1, 13], [2, 5]]):
            committed = [6] if number == 0 else []
            await verifier.plan(text, committed, sequence=number, plan_id=10 + number)
        await verifier.plan([1], sequence=99)
        assert isinstance(await verifier.hear(), pb.Fault)
        drafter.gate.set()
        await verifier.hear()
        answers = {answer.plan_id: answer for answer in [await verifier.hear() for _ in range(3)]}
        assert tuple(answers[10].ids) == expected([0, 5, 6], 4)
        assert answers[11].code == pb.FAULT_CODE_DRAFTER_FAILED
        assert "poisoned" in answers[11].detail
        assert tuple(answers[12].ids) == expected([2, 5], 4)
        # What the failed calls committed twice or not at all is not drafted from.
        for number, text in enumerate([[0, 5, 6], [1, 13], [2, 5]]):
            await verifier.plan(text, [4], sequence=number)
            assert tuple((await verifier.hear()).ids) == expected([*text, 4], 4)


async def test_what_cannot_be_honoured_is_faulted_and_the_stream_goes_on(server):
    async with peer(server) as verifier:
        for misplaced in (
            pb.DraftRequest(messages=[pb.VerifierMessage()]),
            pb.DraftRequest(),
            pb.DraftRequest(hello=pb.Hello()),
        ):
            await verifier.call.write(misplaced)
            nonsense = await verifier.hear()
            assert (nonsense.code, nonsense.epoch) == (pb.FAULT_CODE_INVALID_MESSAGE, 0)
        await verifier.open([1], law="rumour")
        assert (await verifier.hear()).code == pb.FAULT_CODE_UNSUPPORTED_LAW
        await verifier.open([VOCAB])
        fault = await verifier.hear()
        assert (fault.code, fault.epoch) == (pb.FAULT_CODE_INVALID_MESSAGE, 1)
        await verifier.plan([1], plan_id=3)
        fault = await verifier.hear()
        assert (fault.code, fault.plan_id) == (pb.FAULT_CODE_UNKNOWN_SEQUENCE, 3)
        await verifier.open([1])
        await verifier.plan([2])
        assert (await verifier.hear()).code == pb.FAULT_CODE_PREFIX_MISMATCH
        await verifier.open([2], epoch=2)
        await verifier.plan([2], epoch=2)
        assert tuple((await verifier.hear()).ids) == expected([2], 4)


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


async def test_a_plan_has_a_server_span_that_its_block_continues(server, spans, drafter):
    drafter.poison = {13}
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with peer(server) as verifier:
        await verifier.open([1])
        await verifier.plan([1], traceparent=f"00-{trace_id}-{parent}-01")
        block = await verifier.hear()
        await verifier.plan([1], [13], traceparent=f"00-{trace_id}-{parent}-01")
        await verifier.hear()
    drafted, failed = spans.get_finished_spans()
    assert (drafted.name, drafted.kind) == (names.SPAN_DRAFT, SpanKind.SERVER)
    assert f"{drafted.parent.span_id:016x}" == parent
    assert block.traceparent == f"00-{trace_id}-{drafted.context.span_id:016x}-01"
    assert drafted.attributes[names.DRAFT_TOKENS] == 4
    assert drafted.attributes[names.DRAFTER_MODEL] == "scripted"
    assert drafted.attributes[names.DRAFTER_REPLICA] == "replica-1"
    assert failed.status.status_code is StatusCode.ERROR


async def test_a_plan_whose_block_was_told_before_has_a_span_as_well(server, spans):
    trace = f"00-{'1' * 32}-{'2' * 16}-01"
    async with peer(server) as verifier:
        await verifier.open([1])
        await verifier.plan([1], ahead_length=3, traceparent=trace)
        block = tuple((await verifier.hear()).ids)
        [outcome] = (await verifier.hear()).outcomes
        bonus, *ahead = expected([1, *block], 4)
        assert list(outcome.ids) == ahead
        await verifier.plan([1], (*block, bonus), plan_id=2, ahead_length=3, traceparent=trace, held=True)
        # The drafter was not asked, and its span is the held plan's.
        await until(lambda: len(spans.get_finished_spans()) == 2)
    asked, told = (dict(span.attributes) for span in spans.get_finished_spans())
    assert not asked[names.DRAFT_AHEAD]
    assert (told[names.DRAFT_AHEAD], told[names.DRAFT_TOKENS], told[names.PLAN_LENGTH]) == (True, 3, 4)


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
