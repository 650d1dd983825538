"""The sequence that decodes an answer again, of which an engine has one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cluster.speculation.law import NONE
from cluster.speculation.provenance import Numerics
from cluster.speculation.request import GenerationEvent, GenerationRequest
from verifier_service.audit.auditor import Auditor
from verifier_service.requests.sequence import Phase, Sequence, Sink

# From a request and where its events go.
Make = Callable[[GenerationRequest, Sink], Sequence]


class Replaying:
    """The engine's thread alone. sequence: the one in the batch; it goes along with the steps of clients'
    sequences, makes a step of its own only where there are none, and gives way to any request.
    """

    def __init__(self, auditor: Auditor, make: Make, numerics: Numerics) -> None:
        self._auditor = auditor
        self._make = make
        self._numerics = numerics
        self.sequence: Sequence | None = None

    def next(self) -> Sequence | None:
        """A sequence for the next answer that waits, none while there is one or nothing waits."""
        replay = self._auditor.replays.first()
        if self.sequence is not None or replay is None:
            return None
        request = replace(
            replay.request, law=NONE, max_tokens=len(replay.tokens), stop=(), traceparent="", request_id=""
        )
        sequence = self._make(request, _ignore)
        sequence.replay = replay
        return sequence

    def began(self, sequence: Sequence) -> None:
        """It is in the batch."""
        self._auditor.replays.take()
        self.sequence = sequence

    def interrupted(self) -> Sequence | None:
        """The sequence that has to leave the batch, if there is one; its replay will begin anew."""
        sequence, self.sequence = self.sequence, None
        if sequence is not None and sequence.replay is not None:
            self._auditor.replays.put_back(sequence.replay)
        return sequence

    def compare(self, sequence: Sequence, token: int, logits: Tensor, probs: Tensor) -> bool:
        """Takes its next token and says whether the replay is over; logits, probs: [V]."""
        assert sequence.replay is not None
        error = self._numerics.logit_discrepancy
        result = sequence.replay.take(sequence.emitted, token, logits, probs, error)
        if result is None:
            sequence.tokens.append(token)
            sequence.controller.emit(token)
            sequence.phase = Phase.IDLE
            return False
        self._auditor.replayed(result)
        if sequence.replay.done is not None:
            sequence.replay.done(result)
        return True

    def left(self, sequence: Sequence) -> None:
        """A sequence is no longer in the batch."""
        if sequence is self.sequence:
            self.sequence = None


def _ignore(_event: GenerationEvent) -> None:
    """Where the events of a replay go."""
