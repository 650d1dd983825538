"""Answers requests, whatever carries them: validates, streams a verifier's events, records the outcome."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace

from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from cluster.gateway import wire
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.extras import with_extras
from cluster.gateway.ledger import RequestLedger
from cluster.gateway.merging import merged
from cluster.gateway.parameters import choices_of
from cluster.gateway.prompting import Prompting
from cluster.gateway.record import RequestRecord
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.tenants import Doors, limited
from cluster.gateway.tools.offer import offer_of
from cluster.gateway.tools.reader import CallReader
from cluster.gateway.validation import Identity, check_model, validate
from cluster.gateway.verifiers import Verify, decoded
from cluster.speculation.noise import choice_seed
from cluster.speculation.request import Committed, Finished, FinishReason, GenerationRequest
from cluster.telemetry import names
from cluster.telemetry.context import extract_metadata
from cluster.telemetry.labels import Domains
from truedraft.v1 import inference_pb2 as pb

log = logging.getLogger(__name__)


class GatewayService:
    """verify: hands a request to some verifier and returns its events at once; doors: who is let in; ledger:
    of its requests; in_flight: answers that are waited for."""

    def __init__(
        self,
        spec: GatewaySpec,
        prompting: Prompting,
        verify: Verify,
        tracer: Tracer,
        doors: Doors,
        meter: Meter | None = None,
    ) -> None:
        self.ledger = RequestLedger(spec.served_name, Domains(spec.domains), meter, spec.measured)
        self._spec = spec
        self._prompting = prompting
        self._verify = verify
        self._tracer = tracer
        self._doors = doors
        self.in_flight = 0
        # Tokenising a long prompt would hold up every other stream; one thread, since a tokenizer
        # is not made for two at a time.
        self._tokenising = ThreadPoolExecutor(1, "tokenise")

    @property
    def models(self) -> tuple[str, ...]:
        """What clients may ask for, the target itself first."""
        return self._spec.models

    def let_in(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether one may ask at all, and what tells of all tenants as well. Raises RequestError."""
        return self._doors.sees_all(self._doors.tenant(metadata))

    def described(self, metadata: Iterable[tuple[str, str | bytes]]) -> pb.Model:
        """The served model, as it is for who asks. Raises RequestError."""
        spec = limited(self._spec, self._doors.tenant(metadata))
        return pb.Model(
            id=spec.served_name,
            context_length=self._prompting.context_length,
            laws=spec.laws,
            default_law=spec.default_law,
        )

    def check_model(self, model: str) -> None:
        """Raises InvalidRequestError for a model that is not served here."""
        check_model(model, self._spec)

    async def answer(
        self, request: pb.GenerateRequest, metadata: Iterable[tuple[str, str | bytes]]
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        """Deltas, then the Answer; of several answers mixed, each ended by its own. Raises RequestError;
        cancelling it frees the verifier's sequences."""
        metadata = list(metadata)
        record = self._record(request, metadata)
        with self._recording(record):
            tenant = self._doors.tenant(metadata)
            record.asked_by(tenant.name)
            request = with_extras(request, metadata)
            record.labelled(request.domain)
            with self._doors.admitted(tenant):
                identity = Identity(record.request_id, record.traceparent, tenant.name)
                spec = limited(self._spec, tenant)
                generation = await asyncio.get_running_loop().run_in_executor(
                    self._tokenising, validate, request, spec, self._prompting, identity
                )
                # Closed here and now when the consumer leaves, not when the garbage collector comes by.
                async with aclosing(self._answers(request, metadata, record, generation)) as messages:
                    async for message in messages:
                        yield message

    def _answers(
        self,
        request: pb.GenerateRequest,
        metadata: Iterable[tuple[str, str | bytes]],
        record: RequestRecord,
        generation: GenerationRequest,
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        """Each of several answers is a request of its own to the verifiers, with a span and a log line."""
        streams = [self._decode(request, generation, record, 0)]
        others = range(1, choices_of(request))
        streams.extend(self._another(request, metadata, generation, index) for index in others)
        return streams[0] if len(streams) == 1 else merged(streams)

    async def _another(
        self,
        request: pb.GenerateRequest,
        metadata: Iterable[tuple[str, str | bytes]],
        first: GenerationRequest,
        index: int,
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        record = self._record(request, metadata)
        own = replace(
            first,
            request_id=record.request_id,
            traceparent=record.traceparent,
            seed=choice_seed(first.seed, index),
        )
        with self._recording(record):
            record.asked_by(self._doors.tenant(metadata).name)
            record.labelled(request.domain)
            async with aclosing(self._decode(request, own, record, index)) as messages:
                async for message in messages:
                    yield message

    @contextmanager
    def _recording(self, record: RequestRecord) -> Iterator[None]:
        """Closes the record by whatever comes through; raises RequestError for every fault."""
        try:
            yield
        except RequestError as error:
            record.refused(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            record.cancelled()
            raise
        except Exception as error:
            # The details of a fault of ours are for the log, not for the client.
            about = {"trace_id": record.trace_id}
            log.exception("request %s failed", record.request_id, extra=about)
            sentence = f"The request failed inside the cluster; its log says why under {record.request_id}."
            failure = RequestError(Reason.INTERNAL, sentence)
            record.refused(failure)
            raise failure from error

    def _record(
        self, request: pb.GenerateRequest, metadata: Iterable[tuple[str, str | bytes]]
    ) -> RequestRecord:
        operation = names.OPERATION_CHAT if request.messages else names.OPERATION_TEXT
        return RequestRecord(
            self._tracer,
            extract_metadata(metadata),
            uuid.uuid4().hex,
            operation,
            # An unknown name is the client's to choose, and span names must stay few.
            self._spec.served_name,
            self.ledger,
        )

    async def _decode(
        self, request: pb.GenerateRequest, generation: GenerationRequest, record: RequestRecord, index: int
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        if self.in_flight >= self._spec.max_requests:
            sentence = f"This gateway has its {self._spec.max_requests} requests already; try again later."
            raise RequestError(Reason.OVERLOADED, sentence)
        model = generation.adapter or self._spec.served_name
        labels = wire.Labels(generation.request_id, model, index, generation.seed)
        record.accepted(generation)
        reader = self._reader(request, generation)
        self.in_flight += 1
        try:
            async with aclosing(self._decoded(generation, record.lost)) as events:
                async for event in events:
                    if isinstance(event, Committed):
                        record.streamed()
                        delta = wire.to_delta(event, generation.law, labels, self._prompting.token_bytes)
                        if reader is not None:
                            _part(delta, reader.read(event.text))
                        yield delta
                        continue
                    ended = event
                    if reader is not None:
                        delta = wire.to_delta(Committed("", ()), generation.law, labels, lambda _: b"")
                        _part(delta, reader.end())
                        if delta.text or delta.tool_calls:
                            yield delta
                        if reader.called and event.reason is FinishReason.STOP:
                            ended = replace(event, reason=FinishReason.TOOL_CALLS)
                    record.finished(ended)
                    yield wire.to_answer(ended, labels)
        finally:
            self.in_flight -= 1

    def _reader(self, request: pb.GenerateRequest, generation: GenerationRequest) -> CallReader | None:
        """Of calls in the answer, none where it has only text."""
        if offer_of(request) is None:
            return None
        seen = b"".join(map(self._prompting.token_bytes, generation.resumed_ids)).decode(errors="ignore")
        return CallReader(generation.request_id, seen)

    def _decoded(
        self, generation: GenerationRequest, lost: Callable[[int], None]
    ) -> AsyncGenerator[Committed | Finished, None]:
        return decoded(self._verify, generation, self._spec.first_token_timeout_s, lost)

    async def generate(self, generation: GenerationRequest) -> None:
        """Takes a request that is no client's to its end, without a record. Raises RequestError."""
        async with aclosing(self._decoded(generation, lambda tokens: None)) as events:
            async for _ in events:
                pass


def _part(delta: pb.Delta, parted: tuple[str, list[pb.ToolCall]]) -> None:
    """Puts text and calls in the places of an answer's raw text."""
    delta.text, calls = parted
    delta.tool_calls.extend(calls)
