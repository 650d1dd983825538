"""The one table of errors: what can go wrong with a request, and how each front says so.

docs/api.md shows the same table; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import grpc


class Reason(StrEnum):
    """A cause by its machine-readable name: `code` in the body over HTTP, trailing metadata over gRPC."""

    INVALID_ARGUMENT = "invalid_argument"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MALFORMED_REQUEST = "malformed_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    UNAUTHENTICATED = "unauthenticated"
    NOT_AN_OPERATOR = "not_an_operator"
    LAW_NOT_ALLOWED = "law_not_allowed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    VERIFIER_UNAVAILABLE = "verifier_unavailable"
    VERIFIER_LOST = "verifier_lost"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Cause:
    """grpc, http: the status of either front; kind: OpenAI's `type`; when: in words; retry_after: seconds
    after which the same request may succeed, None where sending it again will not help or need not wait.
    """

    grpc: grpc.StatusCode
    http: int
    kind: str
    when: str
    retry_after: int | None = None


_INVALID = grpc.StatusCode.INVALID_ARGUMENT

CAUSES: dict[Reason, Cause] = {
    Reason.INVALID_ARGUMENT: Cause(
        _INVALID,
        400,
        "invalid_request_error",
        "a field's value is out of range, empty, or contradicts another's",
    ),
    Reason.UNKNOWN_PARAMETER: Cause(
        _INVALID, 400, "invalid_request_error", "a field that is not known here, or is known and not served"
    ),
    Reason.MALFORMED_REQUEST: Cause(
        _INVALID, 400, "invalid_request_error", "no JSON, no UTF-8, or values of the wrong type"
    ),
    Reason.CONTEXT_LENGTH_EXCEEDED: Cause(
        _INVALID, 400, "invalid_request_error", "prompt and max_tokens do not fit the context"
    ),
    Reason.MODEL_NOT_FOUND: Cause(_INVALID, 400, "invalid_request_error", "a model that is not served here"),
    Reason.UNAUTHENTICATED: Cause(
        grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error", "no API key, or one that is not known"
    ),
    Reason.NOT_AN_OPERATOR: Cause(
        grpc.StatusCode.PERMISSION_DENIED,
        403,
        "permission_error",
        "metrics, asked for with a key that is no operator's",
    ),
    Reason.LAW_NOT_ALLOWED: Cause(
        grpc.StatusCode.PERMISSION_DENIED,
        403,
        "permission_error",
        "a lossy law that this deployment does not allow, or not as far as it is asked to go",
    ),
    Reason.PAYLOAD_TOO_LARGE: Cause(
        _INVALID, 413, "invalid_request_error", "a message larger than is taken at all"
    ),
    Reason.NOT_FOUND: Cause(grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error", "no such route"),
    Reason.METHOD_NOT_ALLOWED: Cause(
        grpc.StatusCode.UNIMPLEMENTED, 405, "invalid_request_error", "a route that exists, by another method"
    ),
    Reason.RATE_LIMITED: Cause(
        grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", "the tenant's own limit", retry_after=1
    ),
    Reason.OVERLOADED: Cause(
        grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "overloaded_error", "every queue is full", retry_after=1
    ),
    Reason.VERIFIER_UNAVAILABLE: Cause(
        grpc.StatusCode.UNAVAILABLE, 503, "server_error", "no verifier takes the request up", retry_after=5
    ),
    Reason.VERIFIER_LOST: Cause(
        grpc.StatusCode.UNAVAILABLE,
        503,
        "server_error",
        "verifiers were lost in the middle of the request, and no other went on with it",
        retry_after=1,
    ),
    Reason.INTERNAL: Cause(
        grpc.StatusCode.INTERNAL, 500, "server_error", "a fault of ours; the log has its details"
    ),
}


class RequestError(Exception):
    """A request that is not answered: a reason, one sentence for the client, and the field at fault."""

    def __init__(self, reason: Reason, sentence: str, field: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
        self.field = field

    @property
    def cause(self) -> Cause:
        """How either front says it."""
        return CAUSES[self.reason]


def table() -> str:
    """The rows of the table in docs/api.md."""
    return "\n".join(
        f"| `{reason}` | {cause.grpc.name} | {cause.http} | {cause.when} |"
        for reason, cause in CAUSES.items()
    )
