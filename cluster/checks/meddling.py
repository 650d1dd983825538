"""A relay between verifiers and a drafter that delays, repeats, spoils and loses blocks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from truedraft.v1 import drafting_pb2, drafting_pb2_grpc

# What is done to blocks.
KINDS = frozenset({"lost", "spoilt", "delayed", "repeated", "slow for its content"})

_Context = grpc.aio.ServicerContext[drafting_pb2.DraftRequest, drafting_pb2.DraftResponse]

# Shares of blocks that are delayed at random, repeated, spoilt; first tokens that delay or lose a block.
_DELAYED, _REPEATED, _SPOILT = 0.1, 0.05, 0.05
_SLOW_TOKENS, _LOST_TOKENS = 7, 31
_LONGEST_S = 0.4


class Meddler(drafting_pb2_grpc.DraftingServiceServicer):
    """Everything on one event loop. drafter: address of one that lives, None while there is none.

    done: what was done to blocks, by kind; lost: sequences of which a block never arrived unchanged because
    of its content.
    """

    def __init__(self, drafter: Callable[[], str | None], seed: int) -> None:
        self._drafter = drafter
        self._chance = random.Random(seed)
        self._server: grpc.aio.Server | None = None
        self.done: Counter[str] = Counter()
        self.lost: set[int] = set()

    async def start(self) -> str:
        """The address of the relay."""
        # Verifiers ping often, which the default calls an attack.
        self._server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
        drafting_pb2_grpc.add_DraftingServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def Draft(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[drafting_pb2.DraftRequest], context: _Context
    ) -> None:
        """One verifier's stream, which ends when the drafter does."""
        address = self._drafter()
        if address is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no drafter lives")
        async with grpc.aio.insecure_channel(str(address)) as channel:
            call = drafting_pb2_grpc.DraftingServiceStub(channel).Draft()  # type: ignore[no-untyped-call]
            sending = asyncio.create_task(_forward(request_iterator, call))
            late: set[asyncio.Task[None]] = set()
            writing = asyncio.Lock()
            try:
                while isinstance(response := await call.read(), drafting_pb2.DraftResponse):
                    for delay, each in self._meddled(response):
                        task = asyncio.create_task(_send(context, writing, delay, each))
                        late.add(task)
                        task.add_done_callback(late.discard)
            except grpc.aio.AioRpcError:
                pass
            finally:
                sending.cancel()
                for task in late:
                    task.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the drafter is gone")

    def _meddled(
        self, response: drafting_pb2.DraftResponse
    ) -> list[tuple[float, drafting_pb2.DraftResponse]]:
        """What is passed on, and after how many seconds: what is not delayed still goes together."""
        if not response.messages:
            return [(0.0, response)]
        after: dict[float, list[drafting_pb2.DrafterMessage]] = {}
        for message in response.messages:
            for delay, each in self._meddled_message(message):
                after.setdefault(delay, []).append(each)
        return [(delay, drafting_pb2.DraftResponse(messages=each)) for delay, each in after.items()]

    def _meddled_message(
        self, message: drafting_pb2.DrafterMessage
    ) -> list[tuple[float, drafting_pb2.DrafterMessage]]:
        block = _drafts_of(message)
        if block is None:
            return [(0.0, message)]
        first, delay = block.ids[0], 0.0
        if first % _LOST_TOKENS == 0:
            self._note("lost", message)
            return []
        if first % _SLOW_TOKENS == 0:
            self.done["slow for its content"] += 1
            delay = _LONGEST_S
        if self._chance.random() < _DELAYED:
            self.done["delayed"] += 1
            delay += self._chance.random() * _LONGEST_S
        if self._chance.random() < _SPOILT:
            self._note("spoilt", message)
            self._spoil(message, block)
        if self._chance.random() < _REPEATED:
            self.done["repeated"] += 1
            return [(delay, message), (delay, message)]
        return [(delay, message)]

    def _note(self, what: str, message: drafting_pb2.DrafterMessage) -> None:
        self.done[what] += 1
        # Nobody has asked yet for what a forecast tells.
        if message.WhichOneof("message") == "block":
            self.lost.add(message.block.sequence)

    def _spoil(
        self, message: drafting_pb2.DrafterMessage, block: drafting_pb2.Block | drafting_pb2.Outcome
    ) -> None:
        """In one of the ways that a receiver must notice."""
        match self._chance.randrange(4):
            case 0:
                block.ids[-1] = 2**31
            case 1:
                block.prefix_hash = bytes(reversed(block.prefix_hash))
            case 2:
                block.max_q[0] = float("nan")
            case _ if message.WhichOneof("message") == "block":
                message.block.incarnation += 1
            case _:
                message.forecast.incarnation += 1


def _drafts_of(
    message: drafting_pb2.DrafterMessage,
) -> drafting_pb2.Block | drafting_pb2.Outcome | None:
    """The block that a message brings, or the first of a forecast; None without drafts."""
    match message.WhichOneof("message"):
        case "block" if message.block.ids:
            return message.block
        case "forecast" if message.forecast.outcomes:
            return message.forecast.outcomes[0]
    return None


async def _forward(
    requests: AsyncIterator[drafting_pb2.DraftRequest],
    call: grpc.aio.StreamStreamCall[drafting_pb2.DraftRequest, drafting_pb2.DraftResponse],
) -> None:
    # A drafter that has died is noticed by the reader.
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async for request in requests:
            await call.write(request)
        await call.done_writing()


async def _send(
    context: _Context, writing: asyncio.Lock, delay: float, response: drafting_pb2.DraftResponse
) -> None:
    await asyncio.sleep(delay)
    # A stream takes one message at a time.
    async with writing:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await context.write(response)
