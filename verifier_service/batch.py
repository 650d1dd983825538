"""Runs an engine in the caller's thread until given requests are answered: no server, no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.speculation.request import (
    Committed,
    Finished,
    GenerationEvent,
    GenerationRequest,
    TokenLogprob,
)
from verifier_service.engine.engine import Engine


@dataclass(slots=True)
class Answer:
    """What became of a request; finished is None until it is whole, failure why it never will be."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None
    failure: str | None = None

    def take(self, event: GenerationEvent) -> None:
        """Adds an event."""
        match event:
            case Committed(text, token_ids, logprobs):
                self.text += text
                self.token_ids.extend(token_ids)
                self.logprobs.extend(logprobs)
            case Finished():
                self.finished = event
            case _:
                self.failure = event.detail


def answer_all(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Answer]:
    """Submits the requests together and steps until all are answered; in their order.

    Raises RuntimeError when one is refused or fails.
    """
    answers = [Answer() for _ in requests]
    for request, answer in zip(requests, answers, strict=True):
        engine.submit(request, answer.take)
    while any(answer.finished is None for answer in answers):
        for answer in answers:
            if answer.failure is not None:
                raise RuntimeError(answer.failure)
        engine.step()
    return answers
