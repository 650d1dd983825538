"""A request's way to the verifiers and back: their events, and in what errors they can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.invalid import InvalidRequestError
from cluster.speculation.request import (
    Committed,
    Failed,
    Finished,
    GenerationEvent,
    GenerationRequest,
    Refused,
    Unfollowable,
)

_BUSY = "The verifiers are busy; try again later."
_LOST = "The verifier was lost in the middle of the request; send it again."


class Events(Protocol):
    """A verifier's events of one request."""

    def __aiter__(self) -> AsyncIterator[GenerationEvent]: ...

    def cancel(self) -> None:
        """Frees the sequence if it is still being decoded."""


# Hands a request to some verifier and returns its events at once.
Verify = Callable[[GenerationRequest], Events]


async def decoded(
    verify: Verify, request: GenerationRequest, patience: float
) -> AsyncGenerator[Committed | Finished, None]:
    """The events up to Finished. patience: seconds to wait for the first. Raises RequestError; leaving early
    frees the verifier's sequence."""
    events = verify(request)
    ended = False
    try:
        async for event in _timely(events, patience):
            ended = not isinstance(event, Committed)
            match event:
                case Committed():
                    yield event
                case Finished():
                    yield event
                    return
                case Refused():
                    raise RequestError(Reason.OVERLOADED, _sentence(event.detail))
                case Unfollowable():
                    raise InvalidRequestError(event.field, event.detail)
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


async def _timely(events: Events, patience: float) -> AsyncIterator[GenerationEvent]:
    iterator = aiter(events)
    try:
        first = await asyncio.wait_for(anext(iterator), patience)
    except StopAsyncIteration:
        return
    except TimeoutError:
        sentence = f"No verifier took up the request within {patience:g} s."
        raise RequestError(Reason.VERIFIER_UNAVAILABLE, sentence) from None
    yield first
    async for event in iterator:
        yield event


def _sentence(detail: str) -> str:
    return f"{detail[:1].upper()}{detail[1:].rstrip('.')}."
