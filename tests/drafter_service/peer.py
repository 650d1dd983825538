"""A verifier's end of a stream to a drafting server."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager

import grpc

from cluster.drafting.wire import PROTOCOL_VERSION, open_message
from cluster.speculation.messages import PrefixHash
from tests.drafting.helpers import VOCAB, spec
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


@asynccontextmanager
async def peer(server, hello=True):
    async with grpc.aio.insecure_channel(server.address) as channel:
        peer = Peer(drafting_pb2_grpc.DraftingServiceStub(channel).Draft())
        if hello:
            assert isinstance(await peer.hello(), pb.Welcome)
        yield peer
        peer.call.cancel()
