"""What a verifier counts: counting adds to plain numbers, which instruments read when they are collected."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from cluster.speculation.audit import AuditState
from cluster.telemetry import instruments as names
from cluster.telemetry import names as attributes
from cluster.telemetry.labels import Domains
from cluster.telemetry.observing import Labels, counter, gauge
from verifier_service.drafting.port import Fallback
from verifier_service.limits import Load
from verifier_service.measuring.history import History, RoundTimes
from verifier_service.requests.tally import Origin

# How much a new round trip counts in the mean that is shown.
_WEIGHT = 0.1
_NO_DRAFTER = "none"


@dataclass(slots=True)
class RoundCounts:
    """Of rounds under one law, drafter and domain. Tokens as in Provenance, counted at commit: accepted +
    corrections + bonuses = emitted; discarded: decided and never part of an answer; withdrawn: emitted and
    then cut off by a stop string that began before its round."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    corrections: int = 0
    bonuses: int = 0
    discarded: int = 0
    withdrawn: int = 0

    @property
    def emitted(self) -> int:
        return self.accepted + self.corrections + self.bonuses


Values: TypeAlias = Iterable[tuple[float, Labels]]


class Observed(Protocol):
    """Of an engine, from any thread."""

    def load(self) -> Load: ...
    def kept_tokens(self) -> int: ...
    def audits(self) -> Sequence[AuditState]: ...


class Meters:
    """The engine's thread counts, any thread collects. domains: those that are told apart."""

    def __init__(self, domains: Domains) -> None:
        self._domains = domains
        self._counts: dict[tuple[str, str, str], RoundCounts] = {}
        self._fallbacks: Counter[tuple[str, str, Fallback]] = Counter()
        self._meanwhile: Counter[str] = Counter()
        self._overtaken: Counter[str] = Counter()
        self._plans: dict[str, int] = {}
        self._round_trips: dict[str, float] = {}
        self._prices: dict[str, float] = {}
        self._prompts: Counter[str] = Counter()
        self._preemptions = 0
        self._history = History()
        self._times = RoundTimes()

    def round(
        self,
        law: str,
        drafter: str,
        domain: str,
        drafted: int,
        decided: int,
        origins: Sequence[Origin],
        withdrawn: int,
        seconds: float | None = None,
    ) -> None:
        """drafter: the model that made the block, empty without one; decided: tokens of the verdict; origins:
        of those that the round added to the answer; withdrawn: tokens of earlier rounds, taken back; seconds:
        the round's own time, None for the one that comes with the prompt."""
        key = (law, drafter or _NO_DRAFTER, self._domains.label(domain))
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = RoundCounts()
        counts.rounds += 1
        counts.drafted += drafted
        accepted, bonuses = origins.count(Origin.ACCEPTED), origins.count(Origin.BONUS)
        counts.accepted += accepted
        counts.bonuses += bonuses
        counts.corrections += len(origins) - accepted - bonuses
        counts.discarded += decided - len(origins)
        counts.withdrawn += withdrawn
        self._history.add(key[2], len(origins))
        if seconds is not None:
            self._times.add(drafted > 0, seconds)

    def planned(self, law: str, length: int) -> None:
        """A round's plan."""
        self._plans[law] = length

    def asked(self, pool: str, price: float) -> None:
        """A block was asked for; price: seconds by which that lengthens a step, as far as known."""
        self._prices[pool] = price

    def replied(self, law: str, domain: str, drafter: str, fallback: Fallback | None, seconds: float) -> None:
        """What came of asking for a block, and how long it took."""
        if fallback is not None:
            self._fallbacks[law, self._domains.label(domain), fallback] += 1
        else:
            before = self._round_trips.get(drafter, seconds)
            self._round_trips[drafter] = before + _WEIGHT * (seconds - before)

    def meanwhile(self, law: str) -> None:
        """A round without drafts, whose block was under way and is not waited for."""
        self._meanwhile[law] += 1

    def overtaken(self, used: bool) -> None:
        """A block came after such rounds; used: it goes on from what they decided."""
        self._overtaken["used" if used else "dropped"] += 1

    def prompt(self, source: str, tokens: int) -> None:
        """Tokens before a sequence's round are in its cache; source: how they came there."""
        self._prompts[source] += tokens

    def preempted(self) -> None:
        """A sequence gave its pages to an earlier one."""
        self._preemptions += 1

    def state(self) -> dict[str, Any]:
        """Counts, history and times as plain values, from any thread."""
        counts = [
            {"law": law, "drafter": drafter, "domain": domain, "emitted": each.emitted, **asdict(each)}
            for (law, drafter, domain), each in list(self._counts.items())
        ]
        fallbacks = [
            {"law": law, "domain": domain, "reason": str(reason), "rounds": rounds}
            for (law, domain, reason), rounds in list(self._fallbacks.items())
        ]
        return {
            "counts": counts,
            "fallbacks": fallbacks,
            "meanwhile_rounds": dict(self._meanwhile),
            "overtaken_blocks": dict(self._overtaken),
            "prompt_tokens": dict(self._prompts),
            "preemptions": self._preemptions,
            "round_trips": dict(self._round_trips),
            "prices": dict(self._prices),
            "break_even": self._times.break_even,
            "history": self._history.state(),
        }

    def counts(self) -> dict[tuple[str, str, str], RoundCounts]:
        """By law, drafter and domain."""
        return dict(self._counts)

    def register(self, meter: Meter, engine: Observed, kv_limit: int) -> None:
        """Makes the instruments, which say nothing of an engine that is gone."""
        # Whoever reads the meter is not to keep the engine's pages.
        seen = weakref.ref(engine)

        def of(read: Callable[[Observed], Values]) -> Callable[[], Values]:
            return lambda: [] if (present := seen()) is None else read(present)

        for name, field, what in _COUNTERS:
            meter.create_observable_counter(name, [self._reader(field)], description=what)
        counter(meter, names.FALLBACKS, "Rounds that went on without their block", self._read_fallbacks)
        counter(meter, names.MEANWHILE, "Rounds decoded while a block was under way", self._read_meanwhile)
        counter(meter, names.OVERTAKEN, "Blocks that came after such rounds", self._read_overtaken)
        gauge(meter, names.PLAN_LENGTH, "Drafts that the last round asked for", self._read_plans)
        gauge(meter, names.ROUND_TRIP, "From a plan to its block, a running mean", self._read_trips, "s")
        gauge(meter, names.ASKING, "By which asking lengthens a step", self._read_prices, "s")
        gauge(meter, names.BREAK_EVEN, "Tokens that a drafted round must give", self._read_break_even)
        gauge(meter, names.SEQUENCES, "Sequences", of(lambda each: _sequences(each.load())))
        gauge(
            meter,
            names.KV_TOKENS,
            "Room for tokens in pages held",
            of(lambda each: [(each.load().kv_tokens, {})]),
        )
        gauge(
            meter,
            names.KV_KEPT,
            "The same of pages kept for later",
            of(lambda each: [(each.kept_tokens(), {})]),
        )
        gauge(meter, names.KV_LIMIT, "Tokens that the cache may hold", lambda: [(kv_limit, {})])
        counter(meter, names.PREEMPTIONS, "Sequences that gave way", lambda: [(self._preemptions, {})])
        counter(meter, names.PROMPT_TOKENS, "Tokens before rounds, by source", self._read_prompts)
        gauge(
            meter, names.AUDIT_P_VALUE, "Of bets against the law", of(lambda each: _p_values(each.audits()))
        )
        gauge(
            meter,
            names.AUDIT_ALARM,
            "1 where served tokens do not fit",
            of(lambda each: _alarms(each.audits())),
        )
        counter(meter, names.AUDIT_BETS, "Tokens and drafts bet on", of(lambda each: _bets(each.audits())))
        counter(meter, names.AUDIT_REPLAYS, "Answers decoded again", of(lambda each: _replays(each.audits())))

    def _reader(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_options: CallbackOptions) -> Iterable[Observation]:
            # Copied at once: the engine may add a key meanwhile.
            for (law, drafter, domain), counts in list(self._counts.items()):
                labels = {names.LAW: law, names.DRAFTER: drafter, names.DOMAIN: domain}
                yield Observation(getattr(counts, field), labels)

        return read

    def _read_fallbacks(self) -> Values:
        for (law, domain, reason), count in list(self._fallbacks.items()):
            yield count, {names.LAW: law, names.DOMAIN: domain, names.REASON: str(reason)}

    def _read_meanwhile(self) -> Values:
        return [(count, {names.LAW: law}) for law, count in list(self._meanwhile.items())]

    def _read_overtaken(self) -> Values:
        return [(count, {names.OUTCOME: outcome}) for outcome, count in list(self._overtaken.items())]

    def _read_plans(self) -> Values:
        return [(length, {names.LAW: law}) for law, length in list(self._plans.items())]

    def _read_prompts(self) -> Values:
        return [(tokens, {names.SOURCE: source}) for source, tokens in list(self._prompts.items())]

    def _read_break_even(self) -> Values:
        value = self._times.break_even
        return [] if value is None else [(value, {})]

    def _read_prices(self) -> Values:
        return [(seconds, {names.POOL: each}) for each, seconds in list(self._prices.items())]

    def _read_trips(self) -> Values:
        return [(seconds, {names.DRAFTER: each}) for each, seconds in list(self._round_trips.items())]


_COUNTERS = (
    (names.ROUNDS, "rounds", "Verify steps of sequences"),
    (names.DRAFTED, "drafted", "Drafts that were verified"),
    (names.ACCEPTED, "accepted", "Drafts in answers"),
    (names.CORRECTIONS, "corrections", "Tokens in answers that replaced a draft"),
    (names.BONUSES, "bonuses", "Tokens in answers after a whole block, or without one"),
    (names.EMITTED, "emitted", "Tokens in answers, at commit"),
    (names.DISCARDED, "discarded", "Tokens decided after an answer's end"),
    (names.WITHDRAWN, "withdrawn", "Tokens emitted and then cut off by a stop string"),
)

# The kinds of bets of live audits.
_BETS = (attributes.AUDIT_RANKS, attributes.AUDIT_DRAWN, attributes.AUDIT_KEPT)


def _sequences(load: Load) -> Values:
    return [(load.active, {"state": "active"}), (load.queued, {"state": "queued"})]


def _subject(state: AuditState) -> Labels:
    return {names.LAW: state.law, names.DRAFTER: state.drafter, names.DOMAIN: state.domain}


def _p_values(states: Iterable[AuditState]) -> Values:
    for state in states:
        for kind in _BETS:
            if getattr(state, kind):
                yield getattr(state, f"{kind}_p_value"), {**_subject(state), names.KIND: kind}


def _alarms(states: Iterable[AuditState]) -> Values:
    return [(float(state.alarm), _subject(state)) for state in states]


def _bets(states: Iterable[AuditState]) -> Values:
    for state in states:
        for kind in _BETS:
            yield getattr(state, kind), {**_subject(state), names.KIND: kind}


def _replays(states: Iterable[AuditState]) -> Values:
    for state in states:
        equal = state.replays - state.near_ties - state.faults
        for outcome, count in (("equal", equal), ("near-tie", state.near_ties), ("fault", state.faults)):
            yield count, {**_subject(state), names.OUTCOME: outcome}
