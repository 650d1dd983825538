"""Stream messages that hold several messages, and peers that know nothing of them."""

import grpc
import grpc.aio
import pytest

from cluster.drafting import NgramDrafter
from cluster.drafting.wire import PROTOCOL_VERSION
from tests.drafting.helpers import VOCAB
from tests.verifier_service.drafting.wire import (
    contents,
    good,
    misbehaving,
    response,
    server,
    serving,
    serving_handler,
    side,
)
from truedraft.v1 import drafting_pb2 as pb
from truedraft.v1 import drafting_pb2_grpc


class Recording(drafting_pb2_grpc.DraftingServiceServicer):
    """Answers all plans of a stream message by one; told: kinds and sequences, by stream message."""

    def __init__(self):
        self.told = []

    async def Draft(self, requests, context):  # noqa: N802 - the wire's name
        await anext(requests)
        yield pb.DraftResponse(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, incarnation=5))
        async for request in requests:
            messages = list(contents(request))
            self.told.append([(kind, content.sequence) for kind, content in messages])
            if plans := [content for kind, content in messages if kind == "plan"]:
                yield response(*(good(plan, ids=[plan.sequence, 1]) for plan in plans))


async def test_what_a_step_asks_for_goes_together_and_comes_in_order():
    drafter = Recording()
    async with serving(drafter) as address, side(address) as verifier:
        for sequence in range(4):
            verifier.open(sequence)
            verifier.ask(sequence)
        replies = [await verifier.reply() for _ in range(4)]
        assert [(each.sequence, each.block.tokens) for each in replies] == [(n, (n, 1)) for n in range(4)]
        # One that is alone waits for no other.
        verifier.ask(2, committed=(7,))
        assert (await verifier.reply()).block.tokens == (2, 1)
        verifier.remote.close(2, "over")
        verifier.open(2)
        verifier.ask(2)
        assert (await verifier.reply()).block.tokens == (2, 1)
    together, alone, again = drafter.told
    assert together == [(kind, n) for n in range(4) for kind in ("open", "plan")]
    assert alone == [("plan", 2)]
    assert again == [("close", 2), ("open", 2), ("plan", 2)]


async def test_messages_before_a_fault_of_the_stream_still_count():
    def answers(plan, opened):
        return [good(plan), pb.Fault(code=pb.FAULT_CODE_INVALID_MESSAGE, detail="told so")]

    async with misbehaving(answers) as address, side(address) as verifier:
        verifier.open()
        verifier.ask()
        assert (await verifier.reply()).block.tokens == (1, 2)
        await verifier.until("connecting")


def field(number, content):
    """A submessage as it lies on the wire, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    "answer",
    [
        field(3, pb.Fault(code=pb.FAULT_CODE_PROTOCOL_VERSION, detail="7 is not 6").SerializeToString()),
        field(1, pb.Welcome(protocol_version=6).SerializeToString()),
    ],
    ids=["Fault", "Welcome"],
)
async def test_a_drafter_of_version_6_is_refused_in_words(answer):
    heard = []

    async def draft(requests, context):
        async for request in requests:
            heard.append(request)
            yield answer

    handler = grpc.stream_stream_rpc_method_handler(draft)
    async with (
        serving_handler(handler) as address,
        side(address, state="refused: protocol-version") as verifier,
    ):
        assert "6" in verifier.remote.state
    # Its version is where every version looks for it.
    [hello] = heard
    assert (hello[0], hello[2:7]) == (1 << 3 | 2, b"\x0d" + PROTOCOL_VERSION.to_bytes(4, "little"))


async def test_a_verifier_of_version_6_is_refused_in_words():
    hello = pb.Hello(protocol_version=6, tokenizer_hash="hash", vocab_size=VOCAB).SerializeToString()
    async with server(NgramDrafter()) as running, grpc.aio.insecure_channel(running.address) as channel:
        call = channel.stream_stream("/truedraft.v1.DraftingService/Draft")()
        await call.write(field(1, hello))
        refusal = await call.read()
        assert refusal[0] == 3 << 3 | 2
        fault = pb.Fault.FromString(refusal[2:])
        assert fault.code == pb.FAULT_CODE_PROTOCOL_VERSION
        assert fault.detail == f"the verifier speaks version 6, the drafter {PROTOCOL_VERSION}"
        assert await call.read() is grpc.aio.EOF
