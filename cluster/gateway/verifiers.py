"""A request's way to the verifiers and back: their events, and in what errors they can end."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from grpc.aio import AioRpcError
from ray.exceptions import ObjectLostError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.invalid import InvalidRequestError
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Claim, Law
from cluster.speculation.provenance import Provenance, SoFar, told_of_resumed
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
# Verifiers that an answer may lose. Some requests may be the death of every one that takes them.
_LOSSES = 3
# Before another verifier is asked to go on, for the second time and later.
_PAUSE_S = 0.5


class Events(Protocol):
    """A verifier's events of one request."""

    def __aiter__(self) -> AsyncIterator[GenerationEvent]: ...

    def cancel(self) -> None:
        """Frees the sequence if it is still being decoded."""


class OneByOne:
    """A verifier's events from its messages, each of which brings those that were there. stream: of Serve."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left: deque[GenerationEvent] = deque()

    def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        return self

    async def __anext__(self) -> GenerationEvent:
        while not self._left:
            self._left.extend(await anext(self._stream))
        return self._left.popleft()

    def cancel(self) -> None:
        """See Events."""
        self._stream.cancel()


# Hands a request to some verifier and returns its events at once.
Verify = Callable[[GenerationRequest], Events]


async def decoded(
    verify: Verify,
    request: GenerationRequest,
    patience: float,
    lost: Callable[[int], None],
) -> AsyncGenerator[Committed | Finished, None]:
    """The events up to Finished, whichever verifiers they come from: where one is lost, another goes on from
    the tokens that were handed on. Text without tokens is held until the end that it belongs to.

    patience: seconds to wait for the first event, of each verifier; lost: told of each verifier that is lost,
    with how many tokens were handed on by then. Raises RequestError; leaving early frees the verifier's
    sequence.
    """
    tokens: list[int] = []
    # Of each verifier that was lost, as far as it told.
    parts: list[SoFar] = []
    losses, refusals = 0, 0
    while True:
        part = request
        if losses:
            # Under a name of its own: what may be left of the lost one is cancelled by the old name.
            part = replace(
                request,
                request_id=f"{request.request_id}-{losses}",
                resumed_ids=(*request.resumed_ids, *tokens),
            )
        before, rest, told = len(tokens), [], None
        try:
            async with aclosing(_part(verify, part, patience)) as events:
                async for event in events:
                    match event:
                        case Committed(token_ids=()):
                            rest.append(event)
                        case Committed():
                            tokens.extend(event.token_ids)
                            told = event.so_far or told
                            yield event
                        case Finished():
                            for text in rest:
                                yield text
                            yield _whole(event, request, losses, before, parts)
                            return
        except RequestError as error:
            if told is not None:
                parts.append(told)
            if error.reason is Reason.VERIFIER_LOST and losses < _LOSSES:
                losses += 1
                lost(len(tokens))
            elif error.reason is Reason.OVERLOADED and losses and refusals < _LOSSES:
                # An answer that has begun is not given up because the others have more to do now.
                refusals += 1
            elif error.reason is Reason.OVERLOADED and losses:
                raise RequestError(Reason.VERIFIER_LOST, _LOST) from error
            else:
                raise
        if losses + refusals > 1:
            await asyncio.sleep(_PAUSE_S)


def _whole(
    end: Finished, request: GenerationRequest, losses: int, before: int, parts: Sequence[SoFar]
) -> Finished:
    """The end of an answer whose verifiers were lost but the last. before: tokens that it did not emit;
    parts: what the others had told with these."""
    if not losses:
        return end
    law, last = request.law, end.provenance
    verifiers = "verifier was" if losses == 1 else "verifiers were"
    reason = (
        f"{losses} {verifiers} lost before this one, which went on from the {before} tokens that were sent"
    )
    strongest = _strongest_claim(law, before)
    if LAWS[law.name].sends_rows and LAWS[law.name].lossless:
        reason += f"; how many these are may depend on what followed, so that the law of {law} is not proven"
    reason += "; what was done after them is not counted, and sentences on rounds are on the last one's"
    # It was told that the sent tokens are resumed as well.
    reasons = [each for each in last.reasons if each != told_of_resumed(len(request.resumed_ids) + before)]
    if request.resumed_ids:
        reasons.insert(0, told_of_resumed(len(request.resumed_ids)))
    fallbacks = Counter(last.fallbacks)
    for part in parts:
        fallbacks.update(dict(part.fallbacks))
    every: list[SoFar | Provenance] = [*parts, last]
    doubts = [part.uncertain_positions for part in every if part.uncertain_positions is not None]
    provenance = replace(
        last,
        claim=min(last.claim, strongest, *(part.claim for part in parts)),
        reasons=(reason, *reasons),
        drafters=tuple(dict.fromkeys(drafter for part in every for drafter in part.drafters)),
        rounds=sum(part.rounds for part in every),
        draft_tokens=sum(part.draft_tokens for part in every),
        accepted_tokens=sum(part.accepted_tokens for part in every),
        correction_tokens=sum(part.correction_tokens for part in every),
        bonus_tokens=sum(part.bonus_tokens for part in every),
        fallbacks=dict(fallbacks),
        meanwhile_rounds=sum(part.meanwhile_rounds for part in every),
        uncertain_positions=sum(doubts) if doubts else None,
        verifiers_lost=losses,
    )
    return replace(end, output_tokens=before + end.output_tokens, provenance=provenance)


def _strongest_claim(law: Law, before: int) -> Claim:
    """Of an answer of which `before` tokens are a lost verifier's.

    A loss chooses what is drawn anew, which is what was not sent; and that may depend on what it was: tokens
    that might begin a stop string are held back. Noise that is keyed by position gives the same ones again;
    blocks, and the noise of their rounds, do not.
    """
    known = LAWS[law.name]
    if not known.sends_rows:
        # Whether rows are bitwise the same on both is not known.
        return Claim.EXACT_LAW if before else Claim.IDENTICAL_TOKENS
    return Claim.UNPROVEN if known.lossless or not before else Claim.LOSSY


async def _part(
    verify: Verify, request: GenerationRequest, patience: float
) -> AsyncGenerator[Committed | Finished, None]:
    """One verifier's events up to Finished. Raises RequestError."""
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
                case Failed(leaving=True):
                    raise RequestError(Reason.VERIFIER_LOST, _LOST)
                case Failed():
                    raise RequestError(Reason.INTERNAL, _sentence(event.detail))
        raise RequestError(Reason.VERIFIER_LOST, _LOST)
    except BackPressureError:
        raise RequestError(Reason.OVERLOADED, _BUSY) from None
    except DeploymentUnavailableError:
        sentence = "No verifier is available: the deployment failed to start."
        raise RequestError(Reason.VERIFIER_UNAVAILABLE, sentence) from None
    except (RayActorError, ReplicaUnavailableError, ObjectLostError, AioRpcError) as error:
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
