"""One stream to one drafter replica: handshake, reading, writing, and the ways in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import grpc
import grpc.aio

from cluster.channel.certificates import CertificateError, channel_credentials, refusal
from cluster.channel.spec import Channel
from cluster.drafting.drafter import within
from cluster.drafting.features import FeaturesInfo
from cluster.drafting.outbox import Outbox
from cluster.drafting.wire import KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS, PROTOCOL_VERSION
from cluster.speculation.messages import DrafterIdentity
from truedraft.v1 import drafting_pb2, drafting_pb2_grpc
from verifier_service.drafting.port import DraftTicket

_HANDSHAKE_TIMEOUT_S = 3.0
_OPTIONS = [
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # What really ends a connection whose ping is not answered; 60 s by default.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Connecting again is ours to decide: to which replica, and with what to open there.
    ("grpc.enable_retries", 0),
    # Each connection on its own: a channel is not shared with one to the same address that broke.
    ("grpc.use_local_subchannel_pool", 1),
]

# What a peer's end, a broken network and our own leaving read as.
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

_Feed = grpc.aio.StreamUnaryCall[drafting_pb2.FeedRequest, drafting_pb2.FeedResponse]
_Call = grpc.aio.StreamStreamCall[drafting_pb2.DraftRequest, drafting_pb2.DraftResponse]


class ConnectionLostError(Exception):
    """The stream is over or could not be had; another may follow.

    broke: the transport did, or the drafter left, and not a message that is too large or cannot be read.
    """

    def __init__(self, detail: str, broke: bool = True) -> None:
        super().__init__(detail)
        self.broke = broke


class RefusedError(Exception):
    """The drafter answered the handshake with a typed fault, or one side does not trust the other."""


@dataclass(frozen=True, slots=True)
class HelloInfo:
    """What a verifier says of itself; vocab_size: ids of the target's tokenizer; features: what it makes for
    drafters that read hidden states."""

    tokenizer_hash: str
    vocab_size: int
    target_model: str
    target_revision: str
    verifier_replica: str
    features: FeaturesInfo | None = None


class Connection:
    """A stream after its handshake. number: grows with each connection, from 1; traffic: bytes of messages
    are added to it, as "sent" and "received", and of features as "fed"; feed: the call that takes them, None
    for a drafter that reads none."""

    def __init__(
        self,
        call: _Call,
        feed: _Feed | None,
        welcome: drafting_pb2.Welcome,
        number: int,
        traffic: Counter[str],
    ) -> None:
        self.number = number
        self._traffic = traffic
        self.drafter = DrafterIdentity(welcome.drafter_model, welcome.drafter_kind, welcome.drafter_replica)
        self.incarnation = welcome.incarnation
        self.certain = welcome.certain
        self._context, self._longest = welcome.context, welcome.longest
        self.fed, self.foresees, self.repeats = feed is not None, welcome.foresees, welcome.repeats
        self._stream = welcome.stream
        self._call, self._feed = call, feed
        self._outbox: Outbox[drafting_pb2.VerifierMessage] = Outbox()
        self._features: asyncio.Queue[drafting_pb2.FeedRequest] = asyncio.Queue()

    def asked(self, ticket: DraftTicket) -> int:
        """How many drafts of a ticket its drafter can make."""
        return within(self._context, ticket.base, ticket.length, self._longest)

    def send(self, message: drafting_pb2.VerifierMessage) -> None:
        """Queues a message; returns at once."""
        self._outbox.put(message)

    def send_features(self, sequence: int, epoch: int, start: int, rows: bytes) -> None:
        """Queues a piece; returns at once. start: position of its first row."""
        self._features.put_nowait(
            drafting_pb2.FeedRequest(
                stream=self._stream, sequence=sequence, epoch=epoch, start=start, rows=rows
            )
        )

    async def run(self, receive: Callable[[drafting_pb2.DrafterMessage], None]) -> None:
        """Hands every message to `receive` until one of the calls ends, then raises ConnectionLostError."""
        writers = [asyncio.create_task(self._write())]
        if self._feed is not None:
            writers.append(asyncio.create_task(self._write_features(self._feed)))
        try:
            while True:
                with _translated():
                    response = await self._call.read()
                if response is grpc.aio.EOF:  # type: ignore[attr-defined] # the stubs lack it
                    raise ConnectionLostError("the drafter ended the stream")
                if not isinstance(response, drafting_pb2.DraftResponse):
                    raise ConnectionLostError("a response could not be read", broke=False)
                self._traffic["received"] += response.ByteSize()
                if response.HasField("fault"):
                    raise ConnectionLostError(f"the drafter faulted the stream: {response.fault.detail}")
                if not response.messages:
                    raise ConnectionLostError("a response without messages", broke=False)
                for message in response.messages:
                    receive(message)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _write(self) -> None:
        # A write that fails ends the call, which the reader then hears of.
        with contextlib.suppress(ConnectionLostError):
            while True:
                request = drafting_pb2.DraftRequest(messages=await self._outbox.take())
                self._traffic["sent"] += request.ByteSize()
                with _translated():
                    await self._call.write(request)

    async def _write_features(self, feed: _Feed) -> None:
        with contextlib.suppress(ConnectionLostError):
            try:
                while True:
                    features = await self._features.get()
                    self._traffic["fed"] += features.ByteSize()
                    with _translated():
                        await feed.write(features)
            except ConnectionLostError:
                # Without features there are no drafts; a new connection begins with all of them.
                self._call.cancel()
                raise


@contextlib.asynccontextmanager
async def connect(
    address: str, hello: HelloInfo, number: int, security: Channel, traffic: Counter[str]
) -> AsyncIterator[Connection]:
    """A connection for the time of the context. Raises ConnectionLostError and RefusedError."""
    async with _channel(address, security) as channel:
        stub = drafting_pb2_grpc.DraftingServiceStub(channel)  # type: ignore[no-untyped-call]
        call: _Call = stub.Draft()
        feed: _Feed | None = None
        try:
            try:
                async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                    welcome = await _shake_hands(call, hello)
            except TimeoutError as error:
                raise ConnectionLostError(f"{address} did not answer the handshake") from error
            except ConnectionLostError as loss:
                if reason := refusal(str(loss)):
                    raise RefusedError(f"certificate: {reason}") from loss
                raise
            feed = stub.Feed() if welcome.fed else None
            yield Connection(call, feed, welcome, number, traffic)
        finally:
            call.cancel()
            if feed is not None:
                feed.cancel()


def _channel(address: str, security: Channel) -> grpc.aio.Channel:
    if not security.secure:
        if not security.allows_plaintext(address.rpartition(":")[0]):
            raise RefusedError(f"certificate: no drafting in plain text with {address}")
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    try:
        # Read for every connection, so that a new one takes what has been rotated.
        credentials = channel_credentials(security)
    except CertificateError as error:
        raise RefusedError(f"certificate: {error}") from None
    # Addresses change with every pod; the name does not.
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", security.name)]
    return grpc.aio.secure_channel(address, credentials, options=options)


async def _shake_hands(call: _Call, hello: HelloInfo) -> drafting_pb2.Welcome:
    message = drafting_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        tokenizer_hash=hello.tokenizer_hash,
        vocab_size=hello.vocab_size,
        target_model=hello.target_model,
        target_revision=hello.target_revision,
        verifier_replica=hello.verifier_replica,
    )
    if hello.features is not None:
        message.feature_layers.extend(hello.features.layers)
        message.projection_digest = hello.features.digest
        message.feature_dtype = hello.features.dtype
    with _translated():
        await call.write(drafting_pb2.DraftRequest(hello=message))
        response = await call.read()
    if not isinstance(response, drafting_pb2.DraftResponse):
        raise ConnectionLostError("the drafter ended the stream before the handshake")
    if response.HasField("fault"):
        code = drafting_pb2.FaultCode.Name(response.fault.code).removeprefix("FAULT_CODE_")
        raise RefusedError(f"{code.lower().replace('_', '-')}: {response.fault.detail}")
    if not response.HasField("welcome"):
        raise RefusedError("the drafter's first message is no welcome")
    if response.welcome.protocol_version != PROTOCOL_VERSION:
        raise RefusedError(
            f"protocol-version: the drafter speaks version {response.welcome.protocol_version}, "
            f"the verifier {PROTOCOL_VERSION}"
        )
    return response.welcome


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Every way in which grpc.aio says that a call is over, as ConnectionLostError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        broke = error.code() in _BROKEN
        raise ConnectionLostError(f"{error.code().name}: {error.details()}", broke) from error
    except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
        raise ConnectionLostError(str(error)) from error
    except asyncio.CancelledError:
        # Ours if this task is being cancelled; else the call was, and says so in this way.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLostError("the call was cancelled") from None
