"""The drafter's side of the drafting protocol: a gRPC server in front of one drafter."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from opentelemetry.trace import Tracer

from cluster.channel.certificates import carries, server_credentials
from cluster.channel.spec import LOOPBACK, Channel
from cluster.drafting import Drafter
from cluster.drafting.drafter import Foreseer
from cluster.drafting.features import FeaturesInfo
from cluster.drafting.wire import KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS, PROTOCOL_VERSION
from cluster.speculation.messages import DrafterIdentity
from drafter_service.load import Load
from drafter_service.stream import Context, Replica, Stream
from drafter_service.worker import drafting
from truedraft.v1 import drafting_pb2, drafting_pb2_grpc

_log = logging.getLogger(__name__)

_STOP_GRACE_S = 0.5
# Verifiers end their streams when nothing is under way on them, which may be a prompt's first block.
_LEAVE_S = 5.0
_OPTIONS = [
    # Without it two servers may share a port, and a range's next port would never be tried.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # What really ends a connection whose ping is not answered; 60 s by default.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Verifiers ping as often as we do; the default calls that an attack.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_INTERVAL_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
]


class DraftingServer(drafting_pb2_grpc.DraftingServiceServicer):
    """Serves any number of verifiers' streams with one drafter. load: what they want of it.

    tokenizer_hash, vocab_size: of the target's tokenizer, which verifiers must share; replica: this
    server's name; channel: its certificates. Everything but drafting itself runs on the event loop of
    `start`.
    """

    def __init__(
        self,
        drafter: Drafter,
        tokenizer_hash: str,
        vocab_size: int,
        replica: str,
        tracer: Tracer,
        channel: Channel = LOOPBACK,
    ) -> None:
        self._revision = drafter.revision
        # Never 0, which is what an unset field reads.
        self._replica = Replica(
            DrafterIdentity(drafter.model, drafter.kind, replica),
            incarnation=secrets.randbits(64) | 1,
            features=drafter.features,
            foresees=isinstance(drafter, Foreseer),
            repeats=drafter.repeats if isinstance(drafter, Foreseer) else 0,
        )
        self._context, self._certain, self._longest = drafter.context, drafter.certain, drafter.longest
        # By the number that Welcome names; never 0, which is what an unset field reads.
        self._numbers = itertools.count(1)
        self._streams: dict[int, Stream] = {}
        self._tokenizer_hash = tokenizer_hash
        self._vocab_size = vocab_size
        self._tracer = tracer
        self._channel = channel
        self._drafting = drafting(drafter)
        self.load = Load()
        # Set once it is to end, to be told to new streams too; and when none is left.
        self._leaving, self._left = False, asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    @property
    def healthy(self) -> bool:
        """Started, and drafts."""
        return self._server is not None and self._drafting.alive

    @property
    def sessions(self) -> int:
        """Sequences that are open, of all streams."""
        return sum(stream.sessions for stream in self._streams.values())

    async def start(self, host: str = "127.0.0.1", ports: tuple[int, int] | None = None) -> str:
        """Serve on `host` and return the address; ports: the first free one of first..last, None for any.

        Raises RuntimeError if none is free, CertificateError, and ValueError for a host beyond loopback
        without certificates.
        """
        credentials = server_credentials(self._channel) if self._channel.secure else None
        if credentials is None and not self._channel.allows_plaintext(host):
            raise ValueError(f"no drafting in plain text on {host}")
        server = grpc.aio.server(options=_OPTIONS)
        drafting_pb2_grpc.add_DraftingServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        host = f"[{host}]" if ":" in host else host
        first, last = ports or (0, 0)
        for port in range(first, last + 1):
            with contextlib.suppress(RuntimeError):
                wanted = f"{host}:{port}"
                if credentials is None:
                    bound = server.add_insecure_port(wanted)
                else:
                    bound = server.add_secure_port(wanted, credentials)
                self.address = f"{host}:{bound}"
                break
        else:
            raise RuntimeError(f"no free port on {host} in {first}..{last}")
        self._drafting.start()
        await server.start()
        self._server = server
        return self.address

    async def leave(self, seconds: float = _LEAVE_S) -> None:
        """Has verifiers end their streams, for at most so long: no block is lost that way."""
        self._leaving = True
        for stream in self._streams.values():
            stream.leave()
        if self._streams:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), seconds)

    async def stop(self) -> None:
        """End all streams, then drafting; no error if not started."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_STOP_GRACE_S)
            await asyncio.to_thread(self._drafting.stop)

    async def Draft(  # noqa: N802 - the wire's name
        self, request_iterator: AsyncIterator[drafting_pb2.DraftRequest], context: Context
    ) -> None:
        """One verifier's stream, until it ends it or breaks."""
        if self._channel.secure and not carries(context.auth_context(), self._channel.name):
            detail = f"the verifier's certificate is not made out to {self._channel.name}"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, detail)
        try:
            hello = await anext(request_iterator)
        except StopAsyncIteration:
            return
        refusal = self._refusal(hello)
        if refusal is not None:
            _log.warning("refused %s: %s", hello.hello.verifier_replica or "a verifier", refusal.detail)
            await context.write(drafting_pb2.DraftResponse(fault=refusal))
            return
        number = next(self._numbers)
        stream = Stream(self._replica, self._vocab_size, self._drafting, self._tracer, context, self.load)
        self._streams[number] = stream
        try:
            await context.write(drafting_pb2.DraftResponse(welcome=self._welcome(number)))
            if self._leaving:
                stream.leave()
            async for request in request_iterator:
                stream.handle(request)
        finally:
            del self._streams[number]
            if self._leaving and not self._streams:
                self._left.set()
            await stream.end()

    async def Feed(  # noqa: N802 - the wire's name
        self,
        request_iterator: AsyncIterator[drafting_pb2.FeedRequest],
        context: grpc.aio.ServicerContext[drafting_pb2.FeedRequest, drafting_pb2.FeedResponse],
    ) -> drafting_pb2.FeedResponse:
        """One verifier's features, until it ends or its stream has."""
        if self._channel.secure and not carries(context.auth_context(), self._channel.name):
            detail = f"the verifier's certificate is not made out to {self._channel.name}"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, detail)
        async for message in request_iterator:
            stream = self._streams.get(message.stream)
            if stream is None:
                await context.abort(
                    grpc.StatusCode.FAILED_PRECONDITION, "the stream of these features is over"
                )
            else:
                stream.feed(message)
        return drafting_pb2.FeedResponse()

    def _refusal(self, request: drafting_pb2.DraftRequest) -> drafting_pb2.Fault | None:
        hello = request.hello
        if not request.HasField("hello") or request.messages:
            code, detail = drafting_pb2.FAULT_CODE_INVALID_MESSAGE, "a stream begins with Hello alone"
        elif hello.protocol_version != PROTOCOL_VERSION:
            code = drafting_pb2.FAULT_CODE_PROTOCOL_VERSION
            detail = f"the verifier speaks version {hello.protocol_version}, the drafter {PROTOCOL_VERSION}"
        elif hello.tokenizer_hash != self._tokenizer_hash:
            code = drafting_pb2.FAULT_CODE_TOKENIZER_MISMATCH
            detail = (
                f"the verifier's tokenizer is {hello.tokenizer_hash}, the drafter's {self._tokenizer_hash}"
            )
        elif hello.vocab_size != self._vocab_size:
            code = drafting_pb2.FAULT_CODE_VOCABULARY_MISMATCH
            detail = f"the verifier's vocabulary has {hello.vocab_size} ids, the drafter's {self._vocab_size}"
        elif self._replica.features is not None and (
            difference := _difference(hello, self._replica.features)
        ):
            code, detail = drafting_pb2.FAULT_CODE_FEATURES_MISMATCH, difference
        else:
            return None
        return drafting_pb2.Fault(code=code, detail=detail)

    def _welcome(self, stream: int) -> drafting_pb2.Welcome:
        identity = self._replica.identity
        return drafting_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            drafter_model=identity.model,
            drafter_revision=self._revision,
            drafter_kind=identity.kind,
            drafter_replica=identity.replica,
            incarnation=self._replica.incarnation,
            context=self._context,
            certain=self._certain,
            longest=self._longest,
            fed=self._replica.features is not None,
            stream=stream,
            foresees=self._replica.foresees,
            repeats=self._replica.repeats,
        )


def _difference(hello: drafting_pb2.Hello, reads: FeaturesInfo) -> str:
    """Why a verifier's features are not what the drafter reads; empty if they are."""
    if not hello.feature_layers:
        return f"the drafter reads features of layers {list(reads.layers)}, the verifier makes none"
    if tuple(hello.feature_layers) != reads.layers:
        return f"the verifier reads layers {list(hello.feature_layers)}, the drafter {list(reads.layers)}"
    if hello.projection_digest != reads.digest:
        return f"the verifier fuses by {hello.projection_digest or 'nothing'}, the drafter by {reads.digest}"
    if hello.feature_dtype != reads.dtype:
        return f"the verifier sends features in {hello.feature_dtype}, the drafter reads {reads.dtype}"
    return ""
