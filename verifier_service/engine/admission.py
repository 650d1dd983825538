"""Who has a place in the batch, who waits for one, and who gives way when pages run out."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from cluster.kernels.attention import PAGE
from cluster.telemetry import instruments as names
from verifier_service.audit.auditor import Auditor
from verifier_service.cache.kv_cache import KVPool, SequenceCache, pages_of
from verifier_service.engine.composing import LEAST_CHUNK
from verifier_service.engine.rounds import Rounds
from verifier_service.limits import Limits
from verifier_service.measuring.metering import Meters
from verifier_service.requests.replaying import Replaying
from verifier_service.requests.sequence import Sequence


class Admission:
    """The engine's thread alone.

    Sequences are served in the order of their arrival. One that needs pages takes them from those that came
    last, itself if none came later; who gave way keeps its tokens and its round, block included, returns
    before anybody new, and has its keys and values computed again. So the oldest one always goes on, and
    whoever is not cancelled becomes the oldest. What is decided here follows from counts of tokens that are
    committed and of drafts that were planned, never from drafts: no block is dropped.

    active: in the batch, by number; an answer that is decoded again has the number 0.
    """

    def __init__(
        self,
        pool: KVPool,
        limits: Limits,
        rounds: Rounds,
        auditor: Auditor | None,
        replaying: Replaying | None,
        meters: Meters | None,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._rounds = rounds
        self._auditor = auditor
        self._replaying = replaying
        self._meters = meters
        self.active: dict[int, Sequence] = {}
        self._new: deque[Sequence] = deque()
        # In the order of their arrival; all of them came before all new ones.
        self._returning: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        """Every sequence, those in the batch first."""
        yield from (*self.active.values(), *self._returning, *self._new)

    @property
    def new(self) -> int:
        """Sequences that wait for their first place."""
        return len(self._new)

    @property
    def returning(self) -> int:
        """Sequences that gave way and wait for their next."""
        return len(self._returning)

    @property
    def clients(self) -> int:
        """Active sequences without the one that decodes an answer again. From any thread."""
        return sum(sequence.replay is None for sequence in tuple(self.active.values()))

    @property
    def room(self) -> int:
        """Tokens that the cache holds."""
        return self._pool.pages.count * PAGE

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens in the end can be served at all."""
        return pages_of(tokens) <= self._pool.pages.count

    def begun(self, number: int) -> Sequence | None:
        """The sequence of this number, if it had a place and is not over."""
        found = self.active.get(number)
        return found or next((each for each in self._returning if each.number == number), None)

    def queue(self, sequence: Sequence) -> None:
        """Takes a new sequence."""
        self._new.append(sequence)

    def fill(self) -> None:
        """Gives places to those whose turn it is, as far as there is room."""
        while self._returning or self._new:
            sequence = self._returning[0] if self._returning else self._new[0]
            if self._has_room(sequence):
                self._enter(sequence)
            elif self._replaying is None or (interrupted := self._replaying.interrupted()) is None:
                return
            else:
                self.leave(interrupted, "interrupted")
        if self._replaying is not None:
            replay = self._replaying.next()
            if replay is not None and self._has_room(replay):
                self._enter(replay)
                self._replaying.began(replay)

    def prepare(self, sequence: Sequence) -> bool:
        """Pages for what an active sequence does next: its planned round, or a chunk of what it lacks. False
        if it had to give way."""
        cache = sequence.cache
        assert cache is not None
        if sequence.behind:
            self._adopt(sequence, cache)
        if behind := sequence.behind:
            tokens = cache.length + min(behind, LEAST_CHUNK)
        else:
            tokens = len(sequence.tokens) + sequence.planned
            if sequence.returning:
                sequence.returning = False
                sequence.trace.prefill_ended(len(sequence.tokens) - 1)
        while pages_of(tokens) - len(cache.pages) > self._pool.pages.free:
            latest = max(self.active.values(), key=_turn)
            self._preempt(latest)
            if latest is sequence:
                return False
        cache.fit(tokens)
        return True

    def computed(self, sequence: Sequence) -> None:
        """Rows of committed tokens are in the sequence's cache: others may have them."""
        assert sequence.cache is not None
        if sequence.replay is None:
            sequence.cache.name(sequence.names, sequence.tokens)

    def leave(self, sequence: Sequence, reason: str, sound: bool = True) -> None:
        """The sequence is over. sound: what it has computed may be used again."""
        if self.active.pop(sequence.number, None) is not None:
            self._free(sequence, sound)
            self._rounds.close(sequence, reason)
        elif sequence in self._returning:
            self._returning.remove(sequence)
            self._rounds.close(sequence, reason)
        elif sequence in self._new:
            self._new.remove(sequence)
        if self._replaying is not None:
            self._replaying.left(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """For all of its tokens, a page more for each sequence, and what others were promised."""
        if not self.active:
            return True
        if len(self.active) >= self._limits.max_active:
            return False
        need = pages_of(len(sequence.tokens) + sequence.planned) - self._held(sequence)
        promised = sum(
            max(0, pages_of(len(each.tokens)) + 1 - len(each.cache.pages))
            for each in self.active.values()
            if each.cache is not None
        )
        return need + promised <= self._pool.pages.free

    def _held(self, sequence: Sequence) -> int:
        """Pages that others hold and that it would share with them."""
        pages = self._pool.pages
        most = (len(sequence.tokens) - 1) // PAGE if sequence.replay is None else 0
        for k in range(most):
            page = pages.find(sequence.names.of(sequence.tokens, k))
            if page is None or not pages.is_held(page):
                return k
        return most

    def _enter(self, sequence: Sequence) -> None:
        sequence.cache = self._pool.open()
        sequence.trace.admitted()
        sequence.trace.prefill_began()
        if sequence.returning:
            self._returning.remove(sequence)
        elif sequence.replay is None:
            self._new.popleft()
        self.active[sequence.number] = sequence
        if not sequence.returning and sequence.replay is None:
            self._rounds.entered(sequence)
        if not sequence.returning and self._auditor is not None:
            sequence.subject = self._auditor.subject(sequence.request)

    def _adopt(self, sequence: Sequence, cache: SequenceCache) -> None:
        """Finds what of the sequence's tokens has been computed before."""
        if sequence.replay is not None:
            # It is to be decoded anew, not from what it checks.
            return
        before = cache.length
        cache.adopt(sequence.names, sequence.tokens, len(sequence.tokens) - 1)
        if not sequence.returning and cache.length > before:
            sequence.cached += cache.length - before
            if self._meters is not None:
                self._meters.prompt(names.CACHED, cache.length - before)

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.replay is not None and self._replaying is not None:
            self._replaying.interrupted()
            self.leave(sequence, "interrupted")
            return
        del self.active[sequence.number]
        self._free(sequence, sound=True)
        sequence.returning = True
        insort(self._returning, sequence, key=_turn)
        sequence.trace.preempted()
        if self._meters is not None:
            self._meters.preempted()

    def _free(self, sequence: Sequence, sound: bool) -> None:
        cache = sequence.cache
        assert cache is not None
        if sound:
            self.computed(sequence)
        else:
            cache.forget()
        cache.release()
        sequence.cache = None


def _turn(sequence: Sequence) -> float:
    return sequence.turn
