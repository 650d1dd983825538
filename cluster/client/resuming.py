"""An answer that is taken up again where it broke off; the same for both kinds of client."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import grpc

from cluster.client.ask import Ask
from cluster.client.errors import failed
from truedraft.v1 import inference_pb2 as pb

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0


@dataclass(frozen=True, slots=True)
class Terms:
    """endpoint: host:port of the gateway; timeout: seconds for a whole answer, retries included, None for
    any; retries: how often an answer is taken up again where it broke off, without progress in between;
    api_key: empty where none is asked for.
    """

    endpoint: str
    timeout: float | None = None
    retries: int = 0
    api_key: str = ""

    def metadata(self, traceparent: str) -> list[tuple[str, str]]:
        """Of a call."""
        given = {
            "traceparent": traceparent,
            "authorization": f"Bearer {self.api_key}" if self.api_key else "",
        }
        return [(name, value) for name, value in given.items() if value]


class Resumption:
    """What to ask next, and until when: one answer's attempts.

    A verifier or connection that is lost is not seen, if there are retries: the answer is resumed from the
    tokens received, with the same seed. Its usage is that of all parts, its provenance that of the last. Text
    without tokens, which could not be resumed from, is held until the message that follows it.
    """

    def __init__(self, ask: Ask, terms: Terms) -> None:
        self._ask = ask
        self._terms = terms
        self._deadline = None if terms.timeout is None else time.monotonic() + terms.timeout
        self._failures = 0
        self._received: list[int] = []
        # In earlier attempts.
        self._before = 0
        self._held: list[pb.GenerateResponse] = []

    def request(self) -> pb.GenerateRequest:
        """Of the next attempt. Raises RequestFailedError for what cannot be sent."""
        return self._ask.to_proto()

    def left(self) -> float | None:
        """Seconds for the next attempt, None for any."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def took(self, response: pb.GenerateResponse) -> list[pb.GenerateResponse]:
        """A message came; those that may be handed on now."""
        self._held.append(response)
        if response.HasField("delta"):
            self._received.extend(response.delta.token_ids)
            self._ask = replace(self._ask, seed=response.delta.seed)
            if not response.delta.token_ids:
                return []
        elif response.HasField("answer"):
            response.answer.usage.output_tokens += self._before
        held, self._held = self._held, []
        return held

    def pause_after(self, error: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt. Raises RequestFailedError if there is none."""
        received, self._received, self._held = self._received, [], []
        self._before += len(received)
        self._failures = 1 if received else self._failures + 1
        failure = failed(error, self._terms.endpoint)
        # Where no service was ever seen, none is waited for.
        seen = failure.answered or received or self._ask.resumed_output_ids
        if failure.code != "UNAVAILABLE" or self._failures > self._terms.retries or not seen:
            raise failure from None
        self._ask = replace(self._ask, resumed_output_ids=[*self._ask.resumed_output_ids, *received])
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self._failures - 1))
        left = self.left()
        return pause if left is None else min(pause, left)
