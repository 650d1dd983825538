"""A verifier's side of the wire, and drafters on the other: the real server, and one that misbehaves."""

import asyncio
import contextlib

import grpc
import grpc.aio
from opentelemetry.trace import NoOpTracer

from cluster.drafting.wire import PROTOCOL_VERSION
from cluster.speculation.messages import PrefixHash
from drafter_service.server import DraftingServer
from tests.drafting.helpers import VOCAB, spec
from truedraft.v1 import drafting_pb2 as pb
from truedraft.v1 import drafting_pb2_grpc
from verifier_service.drafting.port import DraftTicket
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver

HELLO = HelloInfo("hash", VOCAB, "target", "1", "verifier-1")


class Side:
    """A verifier's side of the wire: tickets in, replies out. address: of the drafter, or a resolver."""

    def __init__(self, address, hello=HELLO):
        self.replies = asyncio.Queue()
        loop = asyncio.get_running_loop()
        resolver = StaticResolver(address) if callable(address) or isinstance(address, str) else address
        self.remote = RemoteDrafting(resolver, hello, loop)
        self.remote.connect(lambda reply: loop.call_soon_threadsafe(self.replies.put_nowait, reply))
        self.texts = {}
        self.plan = 0

    def open(self, sequence=1, prompt=(1, 2, 3)):
        self.texts[sequence] = list(prompt)
        self.remote.open(spec(sequence, prompt))

    def ask(self, sequence=1, committed=(), length=4, ahead=0, width=1):
        text = self.texts[sequence]
        text.extend(committed)
        self.plan += 1
        return self.remote.request(
            DraftTicket(
                sequence,
                self.plan,
                tuple(committed),
                len(text),
                PrefixHash(text).digest(),
                length,
                "",
                ahead=ahead,
                width=width,
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


def contents(request):
    """What a request brings, in order: (kind, content)."""
    if request.HasField("hello"):
        yield "hello", request.hello
    for message in request.messages:
        kind = message.WhichOneof("message")
        yield kind, getattr(message, kind)


def response(*answers):
    """All of them in one stream message."""
    kinds = {pb.Block: "block", pb.Forecast: "forecast", pb.Fault: "fault"}
    return pb.DraftResponse(messages=[pb.DrafterMessage(**{kinds[type(each)]: each}) for each in answers])


class Misbehaving(drafting_pb2_grpc.DraftingServiceServicer):
    """Answers each plan with what `answer(plan, open)` makes of it."""

    def __init__(self, answer):
        self._answer = answer

    async def Draft(self, requests, context):  # noqa: N802 - the wire's name
        opened = {}
        async for request in requests:
            for kind, content in contents(request):
                if kind == "hello":
                    welcome = pb.Welcome(protocol_version=PROTOCOL_VERSION, drafter_kind="odd", incarnation=5)
                    yield pb.DraftResponse(welcome=welcome)
                elif kind == "open":
                    opened[content.sequence] = content
                elif kind == "plan" and (answers := self._answer(content, opened[content.sequence])):
                    yield response(*answers)


def serving(servicer):
    """The address of a server of its own for this servicer."""
    return _serving(lambda made: drafting_pb2_grpc.add_DraftingServiceServicer_to_server(servicer, made))


def serving_handler(draft):
    """The address of a server of its own whose Draft is this handler."""
    handlers = grpc.method_handlers_generic_handler("truedraft.v1.DraftingService", {"Draft": draft})
    return _serving(lambda made: made.add_generic_rpc_handlers((handlers,)))


@contextlib.asynccontextmanager
async def _serving(add):
    made = grpc.aio.server()
    add(made)
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await made.stop(0)


def misbehaving(answer):
    return serving(Misbehaving(answer))


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
