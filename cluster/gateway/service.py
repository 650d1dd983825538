"""Answers requests, whatever carries them: validates, streams a verifier's events, records the outcome."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Protocol

from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from cluster.gateway import wire
from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.ledger import RequestLedger
from cluster.gateway.merging import merged
from cluster.gateway.parameters import choices_of
from cluster.gateway.prompting import Prompting
from cluster.gateway.record import RequestRecord
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.validation import Identity, check_model, validate
from cluster.speculation.noise import choice_seed
from cluster.speculation.request import (
    Committed,
    Failed,
    Finished,
    GenerationEvent,
    GenerationRequest,
    Refused,
)
from cluster.telemetry import names
from cluster.telemetry.context import extract_metadata
from cluster.telemetry.labels import Domains
from truedraft.v1 import inference_pb2 as pb

log = logging.getLogger(__name__)

_BUSY = "The verifiers are busy; try again later."
_LOST = "The verifier was lost in the middle of the request; send it again."


class Events(Protocol):
    """A verifier's events of one request."""

    def __aiter__(self) -> AsyncIterator[GenerationEvent]: ...

    def cancel(self) -> None:
        """Frees the sequence if it is still being decoded."""


class GatewayService:
    """verify: hands a request to some verifier and returns its events at once; ledger: of its requests."""

    def __init__(
        self,
        spec: GatewaySpec,
        prompting: Prompting,
        verify: Callable[[GenerationRequest], Events],
        tracer: Tracer,
        meter: Meter | None = None,
    ) -> None:
        self.ledger = RequestLedger(spec.served_name, Domains(spec.domains), meter)
        self._spec = spec
        self._prompting = prompting
        self._verify = verify
        self._tracer = tracer
        # Tokenising a long prompt would hold up every other stream; one thread, since a tokenizer
        # is not made for two at a time.
        self._tokenising = ThreadPoolExecutor(1, "tokenise")

    @property
    def model(self) -> str:
        """What clients call the served model."""
        return self._spec.served_name

    def check_model(self, model: str) -> None:
        """Raises InvalidRequestError for a model that is not served here."""
        check_model(model, self._spec.served_name)

    async def answer(
        self, request: pb.GenerateRequest, metadata: Iterable[tuple[str, str | bytes]]
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        """Deltas, then the Answer; of several answers mixed, each ended by its own. Raises RequestError;
        cancelling it frees the verifier's sequences."""
        metadata = list(metadata)
        record = self._record(request, metadata)
        with self._recording(record):
            identity = Identity(record.request_id, record.traceparent)
            generation = await asyncio.get_running_loop().run_in_executor(
                self._tokenising, validate, request, self._spec, self._prompting, identity
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
        streams = [self._decode(generation, record, 0)]
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
            async with aclosing(self._decode(own, record, index)) as messages:
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
            log.exception("request %s failed", record.request_id)
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
            request.domain[:64],
            self.ledger,
        )

    async def _decode(
        self, generation: GenerationRequest, record: RequestRecord, index: int
    ) -> AsyncGenerator[pb.Delta | pb.Answer, None]:
        labels = wire.Labels(generation.request_id, self._spec.served_name, index)
        record.accepted(generation)
        events = self._verify(generation)
        ended = False
        try:
            async for event in self._timely(events):
                ended = not isinstance(event, Committed)
                match event:
                    case Committed():
                        record.streamed()
                        yield wire.to_delta(event, generation.law, labels, self._prompting.token_bytes)
                    case Finished():
                        record.finished(event)
                        yield wire.to_answer(event, labels)
                        return
                    case Refused():
                        raise RequestError(Reason.OVERLOADED, _sentence(event.detail))
                    case Failed():
                        raise RequestError(Reason.INTERNAL, _sentence(event.detail))
            raise RequestError(Reason.VERIFIER_LOST, _LOST)
        except BackPressureError:
            raise RequestError(Reason.OVERLOADED, _BUSY) from None
        except DeploymentUnavailableError:
            sentence = "No verifier is available: the deployment failed to start."
            raise RequestError(Reason.VERIFIER_UNAVAILABLE, sentence) from None
        except (RayActorError, ReplicaUnavailableError) as error:
            raise RequestError(Reason.VERIFIER_LOST, _LOST) from error
        finally:
            if not ended:
                events.cancel()

    async def _timely(self, events: Events) -> AsyncIterator[GenerationEvent]:
        """The events; waits for the first of them only so long. Raises RequestError."""
        iterator = aiter(events)
        timeout = self._spec.first_token_timeout_s
        try:
            first = await asyncio.wait_for(anext(iterator), timeout)
        except StopAsyncIteration:
            return
        except TimeoutError:
            sentence = f"No verifier took up the request within {timeout:g} s."
            raise RequestError(Reason.VERIFIER_UNAVAILABLE, sentence) from None
        yield first
        async for event in iterator:
            yield event


def _sentence(detail: str) -> str:
    return f"{detail[:1].upper()}{detail[1:].rstrip('.')}."
