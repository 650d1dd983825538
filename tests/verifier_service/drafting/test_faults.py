"""What the drafting client makes of faults, and of streams that end over what they said."""

import grpc
import grpc.aio
import pytest

from cluster.drafting.wire import PROTOCOL_VERSION
from cluster.speculation.messages import PrefixHash
from tests.drafting.helpers import ScriptedDrafter, until
from tests.verifier_service.drafting.wire import (
    contents,
    response,
    server,
    serving,
    serving_handler,
    side,
)
from truedraft.v1 import drafting_pb2 as pb
from truedraft.v1 import drafting_pb2_grpc
from verifier_service.drafting.port import DraftTicket, Fallback


class Faulting(drafting_pb2_grpc.DraftingServiceServicer):
    """Answers plans with faults of these codes, one a plan, then with blocks; records what it was told."""

    def __init__(self, *codes, epoch=None):
        self.codes = list(codes)
        self.epoch = epoch
        self.told = []
        self.streams = 0

    async def Draft(self, requests, context):  # noqa: N802 - the wire's name
        self.streams += 1
        async for request in requests:
            for kind, content in contents(request):
                self.told.append((kind, content))
                if kind == "hello":
                    welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, incarnation=5)
                    yield pb.DraftResponse(welcome=welcome)
                elif kind == "plan":
                    yield response(self._answer(content))

    def _answer(self, plan):
        fields = {name: getattr(plan, name) for name in ("sequence", "epoch", "plan_id")}
        if not self.codes:
            return pb.Block(**fields, incarnation=5, prefix_hash=plan.prefix_hash, ids=[1], max_q=[1])
        if self.epoch is not None:
            fields["epoch"] = self.epoch
        return pb.Fault(code=self.codes.pop(0), detail="told so", **fields)

    def plans_and_opens(self):
        return [message for kind, message in self.told if kind in ("open", "plan")]


async def test_a_lost_session_is_opened_again_and_the_plan_repeated():
    for code in (pb.FAULT_CODE_UNKNOWN_SEQUENCE, pb.FAULT_CODE_PREFIX_MISMATCH):
        drafter = Faulting(code)
        async with serving(drafter) as address, side(address) as verifier:
            verifier.open()
            verifier.ask(committed=(8, 9))
            assert (await verifier.reply()).block.tokens == (1,)
            first, plan, again, repeated = drafter.plans_and_opens()
            assert (list(first.prompt_ids), list(plan.committed_ids)) == ([1, 2, 3], [8, 9])
            assert (list(again.prompt_ids), list(repeated.committed_ids)) == ([1, 2, 3, 8, 9], [])
            assert (first.epoch, plan.epoch, again.epoch, repeated.epoch) == (1, 1, 2, 2)
            assert repeated.base_committed_len == 5
            assert repeated.prefix_hash == PrefixHash([1, 2, 3, 8, 9]).digest()


async def test_a_session_that_stays_lost_is_a_fault_and_not_a_loop():
    drafter = Faulting(*[pb.FAULT_CODE_PREFIX_MISMATCH] * 2)
    async with serving(drafter) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        verifier.ask(committed=(4,))
        assert (await verifier.reply()).block.tokens == (1,)


async def test_a_sequence_that_the_drafter_cannot_serve_is_not_asked_for_again():
    for code, first in (
        (pb.FAULT_CODE_UNSUPPORTED_LAW, Fallback.NO_DRAFTER),
        (pb.FAULT_CODE_INVALID_MESSAGE, Fallback.DRAFTER_FAULT),
    ):
        drafter = Faulting(code)
        async with serving(drafter) as address, side(address) as verifier:
            verifier.open()
            # From then on nothing is drafted that could be lost.
            for expected_fallback in (first, Fallback.NO_DRAFTER, Fallback.NO_DRAFTER):
                verifier.ask()
                reply = await verifier.reply()
                assert (reply.fallback, reply.detail) == (expected_fallback, "told so")
            assert len(drafter.plans_and_opens()) == 2
            verifier.open(2)
            verifier.ask(2)
            assert (await verifier.reply()).block.tokens == (1,)


async def test_a_fault_of_the_stream_resets_it():
    drafter = Faulting(pb.FAULT_CODE_INVALID_MESSAGE, epoch=0)
    async with serving(drafter) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is Fallback.STREAM_RESET
        await until(lambda: drafter.streams == 2 and verifier.remote.state == "connected")
        verifier.ask()
        assert (await verifier.reply()).block.tokens == (1,)


class Unreadable(drafting_pb2_grpc.DraftingServiceServicer):
    """Answers a plan with bytes that are no message, with more than a message may hold, or not at all."""

    def __init__(self, answer):
        self._answer = answer

    async def Draft(self, requests, context):  # noqa: N802 - the wire's name
        async for request in requests:
            if request.HasField("hello"):
                welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, incarnation=5)
                yield pb.DraftResponse(welcome=welcome).SerializeToString()
            elif any(kind == "plan" for kind, _ in contents(request)):
                if isinstance(self._answer, bytes):
                    yield self._answer
                elif self._answer is not None:
                    await context.abort(self._answer, "over")
                else:
                    return


def serving_bytes(servicer):
    """Like `serving`, with responses that are bytes already."""
    return serving_handler(
        grpc.stream_stream_rpc_method_handler(
            servicer.Draft, request_deserializer=pb.DraftRequest.FromString, response_serializer=None
        )
    )


@pytest.mark.parametrize(
    ("answer", "fallback"),
    [
        (b"\xff\xff no message", Fallback.DRAFTER_FAULT),
        (b"\x12" + bytes(5 * 2**20), Fallback.DRAFTER_FAULT),
        (grpc.StatusCode.INTERNAL, Fallback.DRAFTER_FAULT),
        (grpc.StatusCode.UNAVAILABLE, Fallback.STREAM_RESET),
        (None, Fallback.STREAM_RESET),
    ],
    ids=["not a message", "too large", "internal", "unavailable", "ended"],
)
async def test_a_stream_that_ends_over_what_it_said_is_no_mere_reset(answer, fallback):
    async with serving_bytes(Unreadable(answer)) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).fallback is fallback


async def test_a_ticket_that_continues_nothing_is_answered():
    async with server(ScriptedDrafter()) as running, side(running.address) as verifier:
        verifier.remote.request(DraftTicket(5, 1, (), 0, b"", 4, ""))
        assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        verifier.open()
        verifier.remote.request(DraftTicket(1, 2, (4,), 9, b"", 4, ""))
        assert (await verifier.reply()).fallback is Fallback.DRAFTER_FAULT
        verifier.ask()
        assert (await verifier.reply()).block is not None
