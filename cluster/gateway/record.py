"""What is kept of a request: its root span and one line of JSON in the log."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from cluster.gateway import wire
from cluster.gateway.errors import RequestError
from cluster.gateway.ledger import Closed, RequestLedger
from cluster.speculation.provenance import Provenance
from cluster.speculation.request import Finished, GenerationRequest
from cluster.telemetry import names
from cluster.telemetry.context import inject, trace_id
from cluster.telemetry.request import answer_attributes, root_attributes

log = logging.getLogger("truedraft.requests")

# A longer label is refused, and must not fill the log for that.
_MAX_LABEL = 64


def log_to_stderr() -> None:
    """Lets the request log through as bare lines of JSON, wherever this process's stderr is collected."""
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


class RequestRecord:
    """Opened when a request arrives, closed by whatever ends it first."""

    def __init__(
        self,
        tracer: Tracer,
        parent: Context,
        request_id: str,
        operation: str,
        model: str,
        ledger: RequestLedger,
    ) -> None:
        self._ledger = ledger
        self._domain = ""
        self._law = ""
        self._served: Provenance | None = None
        self._began = time.monotonic()
        self._first_token: float | None = None
        self._closed = False
        self._model = model
        self._operation = operation
        self.request_id = request_id
        self.span: Span = tracer.start_span(f"{operation} {model}", parent, SpanKind.SERVER)
        self.span.set_attributes(
            {
                names.GEN_AI_OPERATION_NAME: operation,
                names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                names.GEN_AI_REQUEST_MODEL: model,
                names.GEN_AI_RESPONSE_ID: request_id,
            }
        )
        self._line: dict[str, Any] = {"request_id": request_id, "operation": operation, "model": model}

    def asked_by(self, tenant: str) -> None:
        """Whose request it is."""
        self.span.set_attribute(names.TENANT, tenant)
        self._line["tenant"] = tenant

    def labelled(self, domain: str) -> None:
        """What the request says it is about."""
        self._domain = domain[:_MAX_LABEL]
        if domain:
            self._line["domain"] = self._domain

    @property
    def traceparent(self) -> str:
        return inject(self.span)

    @property
    def trace_id(self) -> str:
        return trace_id(self.span)

    def accepted(self, request: GenerationRequest) -> None:
        """The request is valid and goes to a verifier."""
        self.span.set_attributes(root_attributes(request, self._model, self._operation))
        self._law = request.law.name
        self._line |= {
            "law": request.law.name,
            "input_tokens": len(request.prompt_ids),
            "max_tokens": request.max_tokens,
        }

    def streamed(self) -> None:
        if self._first_token is None:
            self._first_token = time.monotonic()

    def lost(self, tokens: int) -> None:
        """A verifier was lost after so many tokens had been sent; another is asked to go on."""
        self.span.add_event(names.EVENT_VERIFIER_LOST, {names.SENT_TOKENS: tokens})
        self._ledger.lost(self._law, self._domain)

    def finished(self, event: Finished) -> None:
        self.span.set_attributes(answer_attributes(event, self.request_id, self._model))
        self._served = event.provenance
        self._close(
            "finished",
            finish_reason=event.reason.value,
            output_tokens=event.output_tokens,
            provenance=wire.to_dict(wire.to_proto(event.provenance)),
        )

    def cancelled(self) -> None:
        """The client went away; changes nothing once the request has ended."""
        if self._closed:
            return
        self.span.add_event(names.EVENT_CANCELLED, {names.CANCEL_REASON: "client"})
        self.span.set_attribute(names.ERROR_TYPE, "CANCELLED")
        self._close("cancelled")

    def refused(self, error: RequestError) -> None:
        """It is not answered, or not to its end."""
        code = error.cause.grpc
        self.span.set_attribute(names.ERROR_TYPE, code.name)
        content = {"error": code.name, "reason": error.reason.value, "detail": error.sentence}
        taken = error.cause.http > HTTPStatus.TOO_MANY_REQUESTS
        # Neither the field nor the sentence: either may quote what the client sent.
        self.span.add_event(
            names.EVENT_FAILED if taken else names.EVENT_REFUSED, {names.ERROR_REASON: error.reason.value}
        )
        if error.cause.http < HTTPStatus.TOO_MANY_REQUESTS:
            # The client's fault is no error of the server's span.
            self._close("invalid", field=error.field, **content)
            return
        self.span.set_status(StatusCode.ERROR, error.sentence)
        self._close("failed" if taken else "refused", **content)

    def _close(self, outcome: str, **content: Any) -> None:
        if self._closed:
            return
        self._closed = True
        now = time.monotonic()
        self.span.end()
        self._line |= {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        self._line |= {"outcome": outcome, "trace_id": self.trace_id, "seconds": round(now - self._began, 4)}
        if self._first_token is not None:
            self._line["seconds_to_first_token"] = round(self._first_token - self._began, 4)
        line = self._line | content
        log.info(json.dumps(line, separators=(",", ":")))
        first = self._first_token
        closed = Closed(
            operation=self._operation,
            outcome=outcome,
            domain=self._domain,
            law=self._law,
            seconds=now - self._began,
            first_token=first - self._began if first is not None else None,
            output_tokens=content.get("output_tokens", 0),
            provenance=self._served,
            error=content.get("error", "CANCELLED" if outcome == "cancelled" else ""),
        )
        self._ledger.closed(closed, line)
