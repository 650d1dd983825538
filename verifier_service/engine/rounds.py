"""How a round comes by its block: planned, asked for, waited for, or given up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from cluster.drafting.wire import MAX_BLOCK_LENGTH
from cluster.scheduling import History, Planner, Round, choose
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import COUPLED, NONE
from cluster.speculation.messages import BlockPlan, SessionSpec
from cluster.speculation.noise import Purpose, derive_key
from verifier_service.drafting.checking import fault_of
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort, DraftReply, DraftTicket, Fallback
from verifier_service.limits import Limits
from verifier_service.measuring.measurements import Measurements
from verifier_service.measuring.metering import Meters
from verifier_service.requests.learning import compared
from verifier_service.requests.sequence import Phase, Sequence
from verifier_service.requests.under_way import UnderWay, overdue

# The name of a port that is the only one.
_ONLY = "drafters"
# Rounds after which a sequence that decodes plainly is planned for anew: as many as share its steps, so that
# about one of them is in each, within these bounds; the least where fewer or more share them than then.
_RETHINK_LEAST, _RETHINK_MOST = 8, 32
# Where at least so many share the steps, whose time plans take, one stands for so many rounds more; and so
# does that of a drafter which takes less time than the planner.
_MANY, _STANDS = 4, 3
# Blocks have come when so many times the usual wait is over, or are late for reasons of their own.
_LIKELY = 1.5


class Rounds:
    """The engine's thread alone. drafting: None where nothing drafts; vocab_size: of the target.

    asked: since the last step, blocks that drafters beside the engine hear of, by pool; drafting: since then,
    seconds for which the engine's own thread drafted.
    """

    def __init__(
        self,
        planner: Planner,
        drafting: DraftingPort | Pools | None,
        vocab_size: int,
        limits: Limits,
        measurements: Measurements,
        meters: Meters | None = None,
    ) -> None:
        self._planner = planner
        if drafting is not None and not isinstance(drafting, Pools):
            drafting = Pools({_ONLY: drafting})
        self._pools = drafting
        self._measurements = measurements
        self._vocab_size = vocab_size
        self._limits = limits
        self._meters = meters
        self._plans = 0
        self.asked: Counter[str] = Counter()
        self.drafting = 0.0
        # Sequences past their prompts, when a round was last begun.
        self._decoding = 1
        # Which sequences share a step follows from when their blocks come. Where a block's length must not
        # depend on that, it is one for which every step has room.
        self._always_admitted = max(0, limits.step_rows // limits.max_active - 1)

    def begin(self, sequence: Sequence, decoding: int, again: bool = False) -> None:
        """Plans the round and asks for its block, or makes the sequence ready without one; where the block of
        an earlier round is under way, there is nothing to plan.

        decoding: sequences that are past their prompts, this one included; again: the round had begun, and
        the block that came is of no use.
        """
        self._decoding = decoding
        if sequence.under_way is not None:
            left = sequence.under_way.left(len(sequence.tokens))
            sequence.begin(left, sequence.under_way.width)
            sequence.phase = Phase.DRAFTING
            return
        pools = self._pools_of(sequence)
        waits = LAWS[sequence.request.law.name].sends_rows
        plan = BlockPlan(0)
        if not again:
            sequence.another_round()
        names = self._awake(sequence, pools, decoding) if pools is not None else []
        if pools is not None and names:
            standing = None if again else self._standing(sequence, names, decoding)
            plan = standing if standing is not None else self._planned(sequence, pools, names, decoding)
        length, width = plan.length, self._width(sequence, plan)
        if waits:
            length = min(length, self._always_admitted)
            sequence.budget = self._measurements.own_budget(length, len(sequence.tokens))
        sequence.begin(length, width, plan.stop_below > 0.0, again, plan.probe)
        if pools is None or length == 0:
            sequence.phase = Phase.READY
            return
        if self._meters is not None:
            self._meters.planned(sequence.request.law.name, length)
        self._plans += 1
        sequence.plan_id = self._plans
        # Under coupled a block that is late is a block that is lost, and costs no more. Under the other
        # laws dropping it would favour the drafts that come quickly, so that a block is waited for, and
        # the answer says so if patience ends.
        patience = self._limits.draft_patience if waits else self._limits.draft_deadline
        sequence.asked = time.monotonic()
        sequence.deadline = sequence.asked + patience
        usual = self._measurements.draft(sequence.pool).of(length)
        sequence.likely = sequence.asked + _LIKELY * usual
        sequence.phase = Phase.DRAFTING
        if sequence.request.law == COUPLED and self._limits.draft_ahead:
            late = overdue(sequence.asked, usual, sequence.deadline)
            sequence.under_way = UnderWay(len(sequence.tokens), length, plan.meanwhile, late, width)
        self._open(sequence, pools, sequence.pool)
        self._feed(sequence, pools, sequence.pool)
        heard = pools.request(
            sequence.pool,
            DraftTicket(
                sequence=sequence.number,
                plan_id=sequence.plan_id,
                committed=sequence.untold(),
                base=len(sequence.tokens),
                prefix_hash=sequence.prefix.digest(),
                length=length,
                traceparent=sequence.trace.draft_began(),
                stop_below=plan.stop_below,
                # Where drafts are drawn by noise of their round, there are none before it.
                ahead=0 if waits else plan.ahead,
                width=width,
            ),
        )
        if pools.apart(sequence.pool):
            self._measurements.prices.asked(sequence.pool, heard)
            self.asked[sequence.pool] += heard
            if self._meters is not None:
                self._meters.asked(sequence.pool, self._measurements.prices.of(sequence.pool))
        else:
            self.drafting += time.monotonic() - sequence.asked

    def entered(self, sequence: Sequence) -> None:
        """Its prompt is about to be computed, meanwhile a drafter that foresees may tell what follows each of
        its first tokens. Nothing is asked where that drafter would not be asked for the first block."""
        pools, request = self._pools_of(sequence), sequence.request
        if pools is None or not self._limits.draft_ahead or LAWS[request.law.name].sends_rows:
            return
        if not any(map(pools.foresees, pools.names)):
            return
        for name in pools.names:
            sequence.past_with(name).granted = pools.foresees(name)
        histories = {name: self._history(sequence, self._decoding - 1, pools, name) for name in pools.names}
        name = choose(histories, self._limits.block_length, "", hides=True)
        plan = self._planner.plan(histories[name])
        for other in pools.names:
            sequence.past_with(other).granted = other == name and plan.ahead > 0
        if not sequence.past_with(name).granted:
            return
        self._open(sequence, pools, name)
        self._plans += 1
        pools.request(
            name,
            DraftTicket(
                sequence=sequence.number,
                plan_id=self._plans,
                committed=(),
                base=len(sequence.tokens),
                prefix_hash=sequence.prefix.digest(),
                length=0,
                traceparent="",
                stop_below=plan.stop_below,
                ahead=plan.ahead,
            ),
        )

    def _planned(self, sequence: Sequence, pools: Pools, names: list[str], decoding: int) -> BlockPlan:
        """By whom and how its next block is drafted; names: who may be asked."""
        histories = {name: self._history(sequence, decoding - 1, pools, name) for name in names}
        most, hides = self._limits.block_length, self._limits.draft_ahead
        sequence.pool = choose(histories, most, sequence.pool, hides)
        plan = self._planner.plan(histories[sequence.pool])
        if plan.rows is not None and plan.tokens is not None:
            expected = plan.rows, plan.tokens
            self._measurements.replanned(sequence.expected, expected)
            sequence.expected = expected
        sequence.planned_among = decoding
        for name in names:
            # None of them was worth it.
            sequence.past_with(name).rested = 0 if plan.length == 0 and not plan.probe else None
        if not sequence.silent:
            many = sequence.unbroken > 0 and decoding >= _MANY
            stands = plan.length > 0 and (many or pools.at_once(sequence.pool))
            sequence.plan, sequence.stands = (sequence.pool, plan), _STANDS if stands else 0
        return plan

    @staticmethod
    def _standing(sequence: Sequence, names: list[str], decoding: int) -> BlockPlan | None:
        """Its last plan for a whole round, while that still stands and its pool may be asked."""
        if sequence.plan is None or sequence.stands == 0 or decoding != sequence.planned_among:
            return None
        (pool, plan), request = sequence.plan, sequence.request
        if pool not in names:
            return None
        if request.max_tokens - sequence.emitted - 2 < max(plan.length, plan.ahead):
            return None
        sequence.stands -= 1
        sequence.pool = pool
        return plan

    def _open(self, sequence: Sequence, pools: Pools, name: str) -> None:
        """Announces a sequence to a pool that is about to be asked for the first time: of one that is never
        drafted for nobody hears."""
        past, request = sequence.past_with(name), sequence.request
        if past.open:
            return
        past.open = True
        asks = LAWS[request.law.name].sends_rows
        pools.open(
            name,
            SessionSpec(
                sequence=sequence.number,
                prompt_ids=tuple(sequence.tokens[: sequence.given]),
                sampling=request.sampling,
                law=request.law,
                noise_key=derive_key(request.seed, Purpose.DRAFT if asks else Purpose.GUMBEL),
                proposal_entries=self._limits.proposal_entries if asks else 0,
            ),
        )

    @staticmethod
    def _width(sequence: Sequence, plan: BlockPlan) -> int:
        """Of the round's block: a chain where the law takes no trees; and no more drafts than tokens that the
        answer may still have, so that its pages are those of its tokens."""
        request = sequence.request
        if plan.width == 1 or plan.length == 0 or not LAWS[request.law.name].trees:
            return 1
        most = min(request.max_tokens - sequence.emitted - 1, MAX_BLOCK_LENGTH)
        return max(1, min(plan.width, most // plan.length))

    def stepped(self) -> None:
        """A step is over."""
        self.asked, self.drafting = Counter(), 0.0

    def computed(self, sequence: Sequence) -> None:
        """Given tokens are in the sequence's cache. Drafters may have what they read of them as it comes: a
        long prompt's features, sent with the first plan, would keep its block waiting."""
        pools, cache = self._pools_of(sequence), sequence.cache
        if pools is not None and cache is not None and cache.pool.fused is not None:
            for name in filter(pools.reads, pools.names):
                self._open(sequence, pools, name)
                self._feed(sequence, pools, name)

    @staticmethod
    def _feed(sequence: Sequence, pools: Pools, name: str) -> None:
        """Hands a pool what is in the cache and was not handed to it before; of rows that are not committed
        nothing may be there."""
        cache, past = sequence.cache, sequence.past_with(name)
        readable = cache is not None and cache.pool.fused is not None and pools.reads(name)
        if cache is not None and readable and past.fed < cache.length:
            pools.feed(name, sequence.number, cache.fused(past.fed, cache.length))
            past.fed = cache.length

    def receive(self, sequence: Sequence | None, reply: DraftReply) -> None:
        """Takes a reply to the sequence's present plan; a reply to an earlier one comes too late, since
        its round went on without it."""
        if sequence is None or sequence.phase is not Phase.DRAFTING or sequence.plan_id != reply.plan_id:
            return
        under_way = sequence.under_way
        length = sequence.length if under_way is None else under_way.planned
        if reply.block is not None:
            fault = fault_of(reply.block, length, self._vocab_size, sequence.width)
            if fault:
                # It would fail the forward of the whole batch.
                certain = reply.certain and reply.block.proposal is None
                reply = replace(
                    reply, block=None, fallback=Fallback.INVALID_BLOCK, detail=fault, certain=certain
                )
        late = reply.fallback is Fallback.DEADLINE
        if late or (reply.block is not None and (reply.trip or not reply.ahead)):
            seconds = reply.trip or (reply.arrived or time.monotonic()) - sequence.asked
            self._measurements.waited(sequence.pool, length, seconds, reply.draft_seconds)
        # Where the drafter could not be asked for all, it did not stop by itself.
        limited = reply.block is not None and reply.asked is not None and reply.asked < length
        limited = limited and reply.block is not None and reply.block.depth() == reply.asked
        since = sequence.since_asked()
        if since and reply.block is not None:
            rest, told = reply.block.after(since), compared(reply.block, length, sequence.width, since)
            if self._meters is not None:
                self._meters.overtaken(rest is not None)
            if rest is None:
                self._drop(sequence, told, reply)
                return
            sequence.came_true = told
            # Below these tokens a tree may be wider than planned.
            reply = replace(reply, block=rest.first(sequence.planned))
        if reply.block is not None and not reply.block.tokens and self._others(sequence):
            sequence.silent.add(sequence.pool)
            self._drop(sequence, Round(length, whole=not limited), reply)
            return
        sequence.receive(reply)
        sequence.whole = not limited
        if self._meters is not None:
            request, waited = sequence.request, time.monotonic() - sequence.began
            self._meters.replied(request.law.name, request.domain, sequence.drafter, reply.fallback, waited)
        drafted = len(sequence.block.tokens)
        sequence.trace.draft_ended(drafted, reply.drafter, reply.fallback, reply.detail, ahead=reply.ahead)

    def _others(self, sequence: Sequence) -> bool:
        """Whether its pool said at once that it has nothing, and there are others to ask."""
        pools = self._pools
        return pools is not None and pools.at_once(sequence.pool) and len(pools.names) > 1

    def _drop(self, sequence: Sequence, learned: Round, reply: DraftReply) -> None:
        """The block says nothing that is not decided: another is planned."""
        sequence.trace.draft_ended(0, reply.drafter, None, ahead=reply.ahead)
        sequence.drop(learned)
        self._measurements.decided(sequence.request.domain, sequence.pool, learned)
        self.begin(sequence, self._decoding, again=True)

    def give_up(self, sequences: Iterable[Sequence], now: float) -> None:
        """Ends the wait of those whose deadline has passed; now: on the monotonic clock."""
        for sequence in sequences:
            if sequence.phase is Phase.DRAFTING and sequence.deadline <= now:
                late = DraftReply(sequence.number, sequence.plan_id, None, fallback=Fallback.DEADLINE)
                self.receive(sequence, late)

    def go_on(self, sequences: Iterable[Sequence]) -> None:
        """Has them decode a token while their blocks are under way."""
        for sequence in sequences:
            sequence.go_on()
            if self._meters is not None:
                self._meters.meanwhile(sequence.request.law.name)

    def close(self, sequence: Sequence, reason: str) -> None:
        """The sequence is over."""
        pools = self._pools_of(sequence)
        if pools is not None:
            for name, past in sequence.past.items():
                if past.open:
                    pools.close(name, sequence.number, reason)

    def ended(self, sequence: Sequence) -> None:
        """A round was decided: what other requests may learn of it. A block that was lost is no word of its
        drafter: an outage would teach a whole domain that its drafts come to nothing."""
        if sequence.planned and not sequence.lost:
            last = sequence.past_with(sequence.pool).rounds[-1]
            self._measurements.decided(sequence.request.domain, sequence.pool, last)

    def _history(self, sequence: Sequence, others: int, pools: Pools, pool: str) -> History:
        measured, request, past = self._measurements, sequence.request, sequence.past_with(pool)
        other_rows, other_tokens = measured.others(others)
        return History(
            committed=len(sequence.tokens),
            remaining=request.max_tokens - sequence.emitted,
            rounds=tuple(past.rounds),
            idle=past.idle,
            unbroken=sequence.unbroken,
            domain=request.domain,
            drafter=pool,
            experience=measured.experience(request.domain, pool),
            others=others,
            other_rows=other_rows,
            other_tokens=other_tokens,
            other_seconds=others * measured.seconds_per_sequence,
            verify=measured.verify,
            draft=measured.draft(pool, pools.apart(pool)),
            waits=LAWS[request.law.name].sends_rows,
            foresees=pools.foresees(pool),
            apart=pools.apart(pool),
            at_once=pools.at_once(pool),
            granted=past.granted,
        )

    @staticmethod
    def _awake(sequence: Sequence, pools: Pools, decoding: int) -> list[str]:
        """Who may be asked: neither those that had nothing in this round, nor those of whom the decision not
        to ask them still stands."""
        changed = 4 * abs(decoding - sequence.planned_among) > sequence.planned_among
        rounds = _RETHINK_LEAST if changed else min(max(_RETHINK_LEAST, decoding), _RETHINK_MOST)
        rested = {
            name: sequence.past_with(name).rested for name in pools.names if name not in sequence.silent
        }
        return [name for name, count in rested.items() if count is None or count >= rounds]

    def _pools_of(self, sequence: Sequence) -> Pools | None:
        return self._pools if sequence.request.law != NONE else None
