"""One request inside the engine: its tokens, its place in a round, and what its rounds amounted to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from cluster.scheduling import History
from cluster.speculation.law import Claim
from cluster.speculation.messages import DraftBlock, DrafterIdentity, PrefixHash, Verdict
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import FinishReason, GenerationEvent, GenerationRequest
from cluster.telemetry.sequence import SequenceTrace
from verifier_service.drafting.port import DraftReply, Fallback
from verifier_service.kv_cache import SequenceCache
from verifier_service.text import TextStream

Sink = Callable[[GenerationEvent], None]


class Phase(Enum):
    """Where a sequence stands between two steps."""

    PREFILL = auto()
    # A round is to be planned.
    IDLE = auto()
    # A block was asked for and is on its way.
    DRAFTING = auto()
    # A block, perhaps an empty one, waits for the next forward.
    READY = auto()


class Origin(Enum):
    """How an emitted token came about."""

    ACCEPTED = auto()
    CORRECTION = auto()
    BONUS = auto()


@dataclass(slots=True)
class Tally:
    """Counts over a request's rounds; the origins are of the tokens that remain after discards."""

    rounds: int = 0
    drafted: int = 0
    history_drafted: list[int] = field(default_factory=list)
    history_accepted: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    drafters: dict[DrafterIdentity, None] = field(default_factory=dict)
    details: dict[str, None] = field(default_factory=dict)


class Sequence:
    """Owned by the engine's thread. `tokens` are prompt and output; the cache holds all but the last."""

    def __init__(
        self, number: int, request: GenerationRequest, sink: Sink, text: TextStream, trace: SequenceTrace
    ) -> None:
        self.number = number
        self.request = request
        self.sink = sink
        self.text = text
        self.trace = trace
        self.phase = Phase.PREFILL
        self.tokens = list(request.prompt_ids)
        self.prompt = len(request.prompt_ids)
        self.prefix = PrefixHash(request.prompt_ids)
        self.cache: SequenceCache | None = None
        self.tally = Tally()
        self.told = self.prompt
        self.plan_id = 0
        self.planned = 0
        self.deadline = 0.0
        self.block = DraftBlock()

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt

    def history(self) -> History:
        return History(
            committed=len(self.tokens),
            remaining=self.request.max_tokens - self.emitted,
            drafted=tuple(self.tally.history_drafted),
            accepted=tuple(self.tally.history_accepted),
        )

    def untold(self) -> tuple[int, ...]:
        """Tokens committed since a drafter was last told."""
        tokens = tuple(self.tokens[self.told :])
        self.told = len(self.tokens)
        return tokens

    def receive(self, reply: DraftReply) -> None:
        """Takes the round's block, or the reason why there is none."""
        if reply.block is not None:
            self.block = reply.block
            if reply.drafter is not None and reply.block.tokens:
                self.tally.drafters.setdefault(reply.drafter)
        if reply.fallback is not None:
            self.tally.fallbacks[reply.fallback] += 1
            if reply.detail:
                self.tally.details.setdefault(reply.detail)
        self.phase = Phase.READY

    def commit(self, verdict: Verdict, drafted: int, stop_ids: frozenset[int]) -> FinishReason | None:
        """Adds a round's tokens, discards what follows the answer's end, and says whether it ended."""
        tally = self.tally
        tally.rounds += 1
        tally.drafted += drafted
        tally.history_drafted.append(drafted)
        tally.history_accepted.append(verdict.accepted)
        reason = None
        for index, token in enumerate(verdict.tokens):
            if token in stop_ids:
                reason = FinishReason.STOP
                break
            self.tokens.append(token)
            self.prefix.extend((token,))
            tally.origins.append(_origin(index, verdict, drafted))
            if self.text.push(token):
                # A stop string may reach back into earlier rounds.
                del tally.origins[self.text.token_count :]
                reason = FinishReason.STOP
                break
            if self.emitted == self.request.max_tokens:
                reason = FinishReason.LENGTH
                break
        return reason

    def provenance(self, numerics: Numerics, replica: str) -> Provenance:
        tally = self.tally
        counts = Counter(tally.origins)
        # Both strict laws served emit argmax(log p + G) in every round, whatever became of the drafts.
        claim = Claim.IDENTICAL_TOKENS if numerics.row_invariant else Claim.EXACT_LAW
        return Provenance(
            requested_law=self.request.requested_law,
            effective_law=self.request.law,
            claim=claim,
            numerics=numerics,
            seed=self.request.seed,
            reasons=self._reasons(numerics),
            drafters=tuple(tally.drafters),
            rounds=tally.rounds,
            draft_tokens=tally.drafted,
            accepted_tokens=counts[Origin.ACCEPTED],
            correction_tokens=counts[Origin.CORRECTION],
            bonus_tokens=counts[Origin.BONUS],
            fallbacks={str(reason): count for reason, count in tally.fallbacks.items()},
            # The second field of a W3C traceparent.
            trace_id=self.request.traceparent[3:35],
            verifier_replica=replica,
        )

    def _reasons(self, numerics: Numerics) -> tuple[str, ...]:
        rounds = self.tally.rounds
        reasons = [
            f"{count} of {rounds} rounds were decoded without drafts: {_SENTENCES[reason]}"
            for reason, count in self.tally.fallbacks.items()
        ]
        reasons += self.tally.details
        if not numerics.row_invariant:
            reasons.append("a row's logits are not bitwise the same in every batch on this verifier")
        return tuple(reasons)


_SENTENCES = {
    Fallback.NO_DRAFTER: "no drafter was available",
    Fallback.DEADLINE: "the block had not come by its deadline",
    Fallback.STREAM_RESET: "the stream to the drafter broke",
    Fallback.STALE_BLOCK: "the block was built on another prefix",
    Fallback.INVALID_BLOCK: "the block was malformed",
    Fallback.DRAFTER_FAULT: "the drafter reported a fault",
}


def _origin(index: int, verdict: Verdict, drafted: int) -> Origin:
    if index < verdict.accepted:
        return Origin.ACCEPTED
    return Origin.BONUS if verdict.accepted == drafted else Origin.CORRECTION
