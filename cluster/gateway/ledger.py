"""What a gateway counts of its requests, and the last of them for whoever looks in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from opentelemetry.metrics import Meter, NoOpMeter

from cluster.speculation.provenance import Provenance
from cluster.telemetry import instruments
from cluster.telemetry import names as attributes
from cluster.telemetry.labels import Domains
from cluster.telemetry.observing import gauge

_KEPT = 100


@dataclass(frozen=True, slots=True)
class Closed:
    """A request that is over. outcome: finished, cancelled, refused, invalid or failed; law: empty if the
    request was not understood; times in seconds from its arrival; error: a gRPC status by name."""

    operation: str
    outcome: str
    domain: str
    law: str
    seconds: float
    first_token: float | None = None
    output_tokens: int = 0
    provenance: Provenance | None = None
    error: str = ""


class RequestLedger:
    """Used on the gateway's loop alone. recent: lines of the request log, the last one first; measured: what
    live acceptance is to be compared with, by domain."""

    def __init__(
        self,
        model: str,
        domains: Domains,
        meter: Meter | None = None,
        measured: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._domains = domains
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=_KEPT)
        meter = meter or NoOpMeter("truedraft-gateway")
        gauge(
            meter,
            instruments.MEASURED,
            "Acceptance length of rounds with a block, as last measured",
            lambda: [(length, {instruments.DOMAIN: domain}) for domain, length in measured.items()],
        )
        self._requests = meter.create_counter(instruments.REQUESTS, description="Requests that are over")
        self._lost = meter.create_counter(
            instruments.VERIFIERS_LOST, description="Verifiers lost in the middle of an answer, once for each"
        )
        self._duration = meter.create_histogram(
            instruments.REQUEST_DURATION,
            unit="s",
            description="From a request's arrival to its end",
            explicit_bucket_boundaries_advisory=instruments.DURATION_BUCKETS,
        )
        self._first_token = meter.create_histogram(
            instruments.TIME_TO_FIRST_TOKEN,
            unit="s",
            description="From a request's arrival to its first token",
            explicit_bucket_boundaries_advisory=instruments.FIRST_TOKEN_BUCKETS,
        )
        self._per_token = meter.create_histogram(
            instruments.TIME_PER_OUTPUT_TOKEN,
            unit="s",
            description="Of a token after the first, the mean of an answer",
            explicit_bucket_boundaries_advisory=instruments.PER_TOKEN_BUCKETS,
        )

    def lost(self, law: str, domain: str) -> None:
        """Counts an answer that lost its verifier."""
        self._lost.add(1, {instruments.LAW: law, instruments.DOMAIN: self._domains.label(domain)})

    def closed(self, request: Closed, line: Mapping[str, Any]) -> None:
        """Counts a request. line: of the log."""
        self.recent.appendleft(line)
        claim = request.provenance.claim if request.provenance is not None else None
        labels = {instruments.LAW: request.law, instruments.DOMAIN: self._domains.label(request.domain)}
        self._requests.add(
            1,
            {
                **labels,
                instruments.OUTCOME: request.outcome,
                instruments.CLAIM: claim.label if claim is not None else "",
                instruments.LOSSLESS: "" if claim is None else str(claim.lossless).lower(),
            },
        )
        labels |= {
            attributes.GEN_AI_OPERATION_NAME: request.operation,
            attributes.GEN_AI_PROVIDER_NAME: attributes.PROVIDER,
            attributes.GEN_AI_REQUEST_MODEL: self._model,
        }
        self._duration.record(request.seconds, labels | {attributes.ERROR_TYPE: request.error})
        if request.first_token is None:
            return
        self._first_token.record(request.first_token, labels)
        if request.output_tokens > 1:
            rest = request.seconds - request.first_token
            self._per_token.record(rest / (request.output_tokens - 1), labels)
