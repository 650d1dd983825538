"""From a request to a sequence in the engine's inbox, or the reason why it is not taken."""

from __future__ import annotations

from cluster.speculation.request import Failed, FinishReason, GenerationRequest, Refused, Unfollowable
from verifier_service.engine.admission import Admission
from verifier_service.engine.committing import Commits
from verifier_service.engine.inbox import Inbox
from verifier_service.limits import Limits
from verifier_service.requests.grammar import GrammarError, OutsideGrammarError
from verifier_service.requests.making import Maker
from verifier_service.requests.sequence import Sink
from verifier_service.target.target import TargetModel

SHUTTING_DOWN = "the verifier is shutting down"


class Intake:
    """From any thread. make: what sequences are made by."""

    def __init__(
        self,
        target: TargetModel,
        make: Maker,
        inbox: Inbox,
        admission: Admission,
        commits: Commits,
        limits: Limits,
    ) -> None:
        self._target = target
        self._make = make
        self._inbox = inbox
        self._admission = admission
        self._commits = commits
        self._limits = limits

    @property
    def waiting(self) -> int:
        """Requests that never had a place."""
        return self._inbox.requests + self._admission.new

    def take(self, request: GenerationRequest, sink: Sink) -> None:
        """Leaves it in the inbox, or tells `sink` at once why not."""
        tokens = len(request.prompt_ids) + request.max_tokens
        if self._inbox.stopping:
            sink(Failed(SHUTTING_DOWN, leaving=True))
        elif not self._admission.fits(tokens):
            room = self._admission.room
            sink(Failed(f"prompt and max_tokens are {tokens} tokens, and the verifier's cache holds {room}"))
        elif request.adapter and request.adapter not in self._target.adapters:
            sink(Failed(f"the verifier has no adapter {request.adapter!r}"))
        elif self._has_queue():
            try:
                sequence = self._make(request, sink)
            except OutsideGrammarError as error:
                sink(Unfollowable("resumed_output_ids", f"what is resumed is amiss: {error}"))
                return
            except GrammarError as error:
                sink(Unfollowable("", f"the grammar cannot be followed: {error}"))
                return
            if sequence.emitted >= request.max_tokens:
                # It was whole when it was lost: there is nothing to decode.
                sink(self._commits.finished(sequence, FinishReason.LENGTH))
            elif not self._inbox.request(sequence, self._has_queue):
                sink(self._refusal())
        else:
            sink(self._refusal())

    def _has_queue(self) -> bool:
        return self.waiting < self._limits.max_queued

    def _refusal(self) -> Failed | Refused:
        if self._inbox.stopping:
            return Failed(SHUTTING_DOWN, leaving=True)
        return Refused(f"the verifier's queue of {self._limits.max_queued} requests is full")
