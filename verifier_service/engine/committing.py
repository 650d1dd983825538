"""What follows from a decision: tokens are committed, counted, told to the trace, and released as events."""

from __future__ import annotations

import time

from cluster.speculation.request import Finished, FinishReason, GenerationEvent
from verifier_service.audit.auditor import Auditor
from verifier_service.audit.replay import Replay
from verifier_service.engine.deciding import Decided
from verifier_service.engine.rounds import Rounds
from verifier_service.measuring.metering import Meters
from verifier_service.requests.sequence import Phase, Sequence


class Commits:
    """The engine's thread alone. replica: the verifier's name in provenances."""

    def __init__(self, rounds: Rounds, auditor: Auditor | None, meters: Meters | None, replica: str) -> None:
        self._rounds = rounds
        self._auditor = auditor
        self._meters = meters
        self._replica = replica

    def commit(self, decided: Decided) -> tuple[list[GenerationEvent], FinishReason | None]:
        """Ends the sequence's round; events for its client, and why the answer is over if it is."""
        sequence, verdict = decided.sequence, decided.verdict
        before = len(sequence.tally.origins)
        assert sequence.cache is not None
        if verdict.path is not None:
            base = len(sequence.tokens)
            sequence.cache.gather(base, [base + draft for draft in verdict.path])
        reason = sequence.commit(verdict, decided.doubts, decided.logprobs)
        self._rounds.ended(sequence)
        sequence.cache.length = len(sequence.tokens) - 1
        # What is left after discards; a stop string may even reach back into earlier rounds.
        emitted = max(0, len(sequence.tally.origins) - before)
        accepted = min(verdict.accepted, emitted)
        if self._meters is not None:
            self._meters.round(
                sequence.request.law.name,
                sequence.drafter if sequence.block.tokens else "",
                sequence.request.domain,
                drafted=len(sequence.block.tokens),
                decided=len(verdict.tokens),
                origins=sequence.tally.origins[before:],
                withdrawn=max(0, before - len(sequence.tally.origins)),
                seconds=time.monotonic() - sequence.began if sequence.tally.rounds > 1 else None,
            )
        sequence.trace.verify_ended(accepted, emitted)
        sequence.trace.round_ended(str(sequence.request.law), len(sequence.block.tokens), accepted, emitted)
        events: list[GenerationEvent] = [*sequence.release(final=reason is not None)]
        if reason is None:
            sequence.phase = Phase.IDLE
        else:
            events.append(self.finished(sequence, reason))
        return events, reason

    def finished(self, sequence: Sequence, reason: FinishReason) -> Finished:
        """The last event of an answer. Of a sequence that had no round, from any thread."""
        provenance = sequence.provenance(self._replica)
        sequence.trace.ended("finished", reason)
        if self._auditor is not None and sequence.subject is not None:
            end = [] if sequence.end is None else [sequence.end]
            emitted = [*sequence.tokens[sequence.prompt :], *end]
            self._auditor.replays.consider(Replay(sequence.request, emitted, sequence.subject))
        cached = min(sequence.cached, sequence.prompt)
        return Finished(reason, sequence.prompt, provenance.emitted_tokens, provenance, cached)
