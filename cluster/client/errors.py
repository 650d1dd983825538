"""How a request fails, as its client sees it."""

from __future__ import annotations

from typing import Any

import grpc

# Of the service's own refusals.
_REASON_KEY = "truedraft-reason"
# How gRPC begins to say that it found nobody.
_UNREACHED = ("failed to connect", "errors resolving", "dns resolution failed")


class RequestFailedError(Exception):
    """The service did not answer: a gRPC status by name and one sentence.

    answered: the service itself says so, and not the channel.
    """

    def __init__(self, code: str, sentence: str, answered: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.answered = answered


def failed(error: grpc.RpcError, endpoint: str) -> RequestFailedError:
    """Of a call over either kind of channel."""
    code, details = error.code(), error.details() or "The service gave no details."
    # What the channel itself says is a page about sockets and resolvers.
    if code is grpc.StatusCode.UNAVAILABLE and any(words in details.lower() for words in _UNREACHED):
        details = f"No service answers at {endpoint}."
    # Pairs over either, which the stubs know of one alone.
    trailer: Any = error.trailing_metadata() or ()
    answered = any(key == _REASON_KEY for key, _ in trailer)
    return RequestFailedError(code.name, details, answered)
