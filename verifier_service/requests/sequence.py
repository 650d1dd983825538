"""One request inside the engine: its tokens and its place in a round."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from cluster.scheduling import Budget, Round
from cluster.speculation.controls import Constraint, Controller
from cluster.speculation.messages import BlockPlan, DraftBlock, PrefixHash, Verdict
from cluster.speculation.provenance import Numerics, Provenance, told_of_resumed
from cluster.speculation.request import (
    Committed,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    TokenLogprob,
)
from cluster.telemetry.sequence import SequenceTrace
from verifier_service.audit.replay import Replay
from verifier_service.audit.subject import Subject
from verifier_service.cache.kv_cache import SequenceCache
from verifier_service.cache.prefixes import PageNames
from verifier_service.drafting.port import DraftReply
from verifier_service.requests.learning import after, learned
from verifier_service.requests.tally import Origin, Tally
from verifier_service.requests.text import TextStream
from verifier_service.requests.under_way import UnderWay

Sink = Callable[[GenerationEvent], None]

# Rounds that planners are shown.
_REMEMBERED = 32


class Phase(Enum):
    """Where a sequence stands between two steps."""

    PREFILL = auto()
    # A round is to be planned.
    IDLE = auto()
    # A block was asked for and is on its way.
    DRAFTING = auto()
    # A block, perhaps an empty one, waits for the next forward.
    READY = auto()


@dataclass(slots=True)
class Past:
    """What a sequence had of one drafter pool. open: whether it was announced there; rounds: the last that
    asked it; idle: rounds since; rested: rounds since it was decided to ask it for nothing, None
    where it was not; granted: it can foresee the first round; told: how many tokens it was told, prompt
    included; fed: of how many it was handed what drafters read."""

    told: int
    open: bool = False
    fed: int = 0
    rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    idle: int = 0
    rested: int | None = None
    granted: bool = False


class Sequence:
    """Owned by the engine's thread. `tokens` are prompt and output; the cache holds all but the last, and is
    None while the sequence has no place in the batch.

    number: of arrival, 0 until it is known; given: how many tokens it begins with, the prompt's and those of
    an answer that is resumed; ends: tokens that end the answer; names: of the pages of its tokens; cached: of
    the given tokens, those whose keys and values were there already.
    """

    def __init__(
        self,
        request: GenerationRequest,
        sink: Sink,
        text: TextStream,
        trace: SequenceTrace,
        numerics: Numerics,
        ends: frozenset[int],
        constraint: Constraint | None = None,
    ) -> None:
        self.number = 0
        self.request = request
        self.sink = sink
        self.text = text
        self.trace = trace
        self.phase = Phase.PREFILL
        self.tokens = [*request.prompt_ids, *request.resumed_ids]
        self.prompt = len(request.prompt_ids)
        self.given = len(self.tokens)
        self.prefix = PrefixHash(self.tokens)
        self.ends = ends
        self.controller = Controller(request.controls, request.prompt_ids, ends, constraint)
        for token in request.resumed_ids:
            self.controller.emit(token)
        # Of tokens whose text is still held back, too.
        self.logprobs: deque[TokenLogprob] = deque()
        self.cache: SequenceCache | None = None
        self.names = PageNames(f"{numerics.weights_hash}/{numerics.dtype}", request.tenant)
        self.cached = 0
        # Whether it gave its place away and is not where it was yet.
        self.returning = False
        self.numerics = numerics
        self.tally = Tally(request.law, numerics.row_invariant)
        self.plan_id = 0
        # Drafts that the round asked for: one after another, and at each position.
        self.length, self.width = 0, 1
        # When the round began, and until when its block is waited for.
        self.began = 0.0
        self.deadline = 0.0
        self.block = DraftBlock()
        # Whether a rule of the round's plan may end its block; whether it was
        # lost or cut short in a way that may depend on what was drawn.
        self.ruled, self.doubtful = False, False
        # The model that made the round's block.
        self.drafter = ""
        # What its evidence is kept under, known when it is admitted.
        self.subject: Subject | None = None
        # The answer that this sequence decodes again, if it is an audit's and not a client's.
        self.replay: Replay | None = None
        # A token that ended the answer and is not part of it.
        self.end: int | None = None
        # By drafter pool, what planners may know of it; where the present or last block was asked for.
        self.past: dict[str, Past] = {}
        self.pool = ""
        # Pools that had nothing in this round.
        self.silent: set[str] = set()
        # Sequences that shared its steps when it was planned for last, itself included.
        self.planned_among = 0
        # Its last plan for a whole round and for which pool, and rounds for which that still stands.
        self.plan: tuple[str, BlockPlan] | None = None
        self.stands = 0
        # Rows and tokens of it in a step, as its last plan had it.
        self.expected: tuple[float, float] | None = None
        # Rounds since the last one without a block; whether this is one that is to be compared with.
        self.unbroken, self.probing = 0, False
        # The block that was asked for in this round or in an earlier one and has not come; of the one that
        # has, what is known of drafts that had come true by then.
        self.under_way: UnderWay | None = None
        self.came_true: Round | None = None
        # When the block was asked for, whether it was lost, and whether all of it was admitted.
        self.asked = 0.0
        self.lost, self.whole = False, True
        # Until when it is likely to come.
        self.likely = 0.0
        # What admission may spend on this sequence's block, where it must not depend on other sequences.
        self.budget = Budget(rows=0)

    @property
    def planned(self) -> int:
        """Drafts that its round may have, at most."""
        return self.length * self.width

    @property
    def emitted(self) -> int:
        """Tokens of the output, resumed ones included."""
        return len(self.tokens) - self.prompt

    @property
    def turn(self) -> float:
        """The lower, the later it gives way: in the order of arrival, answers that are decoded again last."""
        return self.number if self.replay is None else math.inf

    @property
    def behind(self) -> int:
        """Tokens that have to be computed before its round: the prompt's, and all of them after it gave its
        place away."""
        assert self.cache is not None
        return len(self.tokens) - (self.phase is not Phase.PREFILL) - self.cache.length

    def past_with(self, pool: str) -> Past:
        """What it had of a drafter pool, which was told what it begins with at first."""
        return self.past.setdefault(pool, Past(self.given))

    def untold(self) -> tuple[int, ...]:
        """Tokens committed since its pool was last told."""
        past = self.past_with(self.pool)
        tokens, past.told = tuple(self.tokens[past.told :]), len(self.tokens)
        return tokens

    def begin(
        self, length: int, width: int = 1, ruled: bool = False, again: bool = False, probing: bool = False
    ) -> None:
        """A round that asks for `length` drafts one after another, `width` at each position; ruled: a rule of
        the plan may end the block before; again: it had begun, and what it waited for was of no use; probing:
        it asks for none although that would pay."""
        self.probing = probing
        self.block, self.doubtful, self.length, self.width = DraftBlock(), False, length, width
        self.lost, self.whole, self.ruled, self.came_true, self.drafter = False, True, ruled, None, ""
        if not again:
            self.began = time.monotonic()
            self.trace.round_began(self.tally.rounds, len(self.tokens), length, width)

    def another_round(self) -> None:
        """It is about to be planned."""
        self.silent.clear()
        for past in self.past.values():
            if past.rested is not None:
                past.rested += 1

    def goes_on(self, now: float) -> bool:
        """Whether a step that takes place now is not to wait for the block that is under way."""
        return self.under_way is not None and self.under_way.goes_on(len(self.tokens), now)

    @property
    def asks(self) -> bool:
        """Whether a block is on its way."""
        return self.phase is Phase.DRAFTING or self.under_way is not None

    @property
    def patience(self) -> float:
        """When its wait for its block ends."""
        return self.deadline if self.under_way is None else min(self.deadline, self.under_way.overdue)

    def since_asked(self) -> tuple[int, ...]:
        """Tokens that were committed since the block that is under way was asked for."""
        return tuple(self.tokens[self.under_way.base :]) if self.under_way is not None else ()

    def go_on(self) -> None:
        """Makes the round one without drafts; its block may come for a later one."""
        self.length = 0
        self.tally.meanwhile += 1
        self.phase = Phase.READY

    def drop(self, learned: Round) -> None:
        """The block that was under way has come, and is of no use."""
        self.past_with(self.pool).rounds.append(learned)
        self.under_way = None

    def admit(self, drafts: int) -> None:
        """Cuts the round's block to what is to be verified of it."""
        self.whole = self.whole and drafts == len(self.block.tokens)
        self.block = self.block.first(drafts)

    def receive(self, reply: DraftReply) -> None:
        """Takes the round's block, or the reason why there is none. What it says of tokens that were decoded
        meanwhile must have been cut off."""
        self.under_way = None
        self.lost = reply.block is None
        if reply.block is not None:
            self.block = reply.block
            self.drafter = reply.drafter.model if reply.drafter is not None else ""
        self.doubtful = reply.depends_on_draws(self.length, self.ruled)
        self.tally.replied(reply)
        self.phase = Phase.READY

    def commit(
        self, verdict: Verdict, doubts: tuple[bool, ...], logprobs: tuple[TokenLogprob, ...]
    ) -> FinishReason | None:
        """Adds a round's tokens, discards what follows the answer's end, and says whether it ended.

        doubts: for each token whether another batch could have changed it; logprobs: of each token. Either
        is empty where it is not asked.
        """
        tally = self.tally
        tally.decided(self.block, verdict, self.doubtful)
        if self.planned:
            path = range(verdict.accepted) if verdict.path is None else verdict.path
            told = learned(self.block, path, self.length, self.width, self.whole)
            self.past_with(self.pool).rounds.append(after(self.came_true, told))
        if self.phase is not Phase.PREFILL:
            asked = self.planned > 0 or self.under_way is not None
            self.unbroken = self.unbroken + 1 if asked else 0
            for name, past in self.past.items():
                if not (self.probing and name == self.pool):
                    spoke = name in self.silent or (asked and name == self.pool)
                    past.idle = 0 if spoke else past.idle + 1
        for index, token in enumerate(verdict.tokens):
            tally.distortion.extend(verdict.distortion[index : index + 1])
            tally.doubts.extend(doubts[index : index + 1])
            if token in self.ends:
                self.end = token
                self._finish_text()
                return FinishReason.STOP
            self.tokens.append(token)
            self.prefix.extend((token,))
            self.controller.emit(token)
            self.logprobs.extend(logprobs[index : index + 1])
            tally.emitted(index, self.block, verdict)
            if self.text.push(token):
                # A stop string may reach back into earlier rounds.
                del tally.origins[self.text.token_count :]
                return FinishReason.STOP
            if self.emitted == self.request.max_tokens:
                return FinishReason.STOP if self._finish_text() else FinishReason.LENGTH
        return None

    def _finish_text(self) -> bool:
        """Whether the answer's end completes a stop string."""
        stopped = self.text.finish()
        if stopped:
            del self.tally.origins[self.text.token_count :]
        return stopped

    def release(self, final: bool) -> list[Committed]:
        """What is final and was not released before."""
        text, tokens = self.text.release(final)
        logprobs = tuple(self.logprobs.popleft() for _ in tokens) if self.logprobs else ()
        released = []
        if text or tokens:
            so_far = None if final else self.tally.so_far(self.text.released)
            released.append(Committed(text, tokens, logprobs, so_far))
        if final and (remainder := self.text.remainder()):
            released.append(Committed(remainder, ()))
        return released

    def provenance(self, replica: str) -> Provenance:
        tally, request = self.tally, self.request
        counts, resumed = Counter(tally.origins), len(request.resumed_ids)
        told = [told_of_resumed(resumed)] if resumed else []
        return Provenance(
            requested_law=request.requested_law,
            effective_law=request.law,
            claim=tally.claim,
            numerics=self.numerics,
            seed=request.seed,
            reasons=(*told, *tally.reasons()),
            drafters=tuple(tally.drafters),
            rounds=tally.rounds,
            draft_tokens=tally.drafted,
            accepted_tokens=counts[Origin.ACCEPTED],
            correction_tokens=counts[Origin.CORRECTION],
            bonus_tokens=counts[Origin.BONUS],
            fallbacks={str(reason): count for reason, count in tally.fallbacks.items()},
            meanwhile_rounds=tally.meanwhile,
            trace_id=request.trace_id,
            verifier_replica=replica,
            distortion=tally.ledger(),
            uncertain_positions=sum(tally.doubts) if tally.doubts else None,
        )
