"""`truedraft bench domains`: rounds of answers, pooled by domain.

Counts are pooled over rounds, never means of each answer's ratio, which are biased; an interval resamples
answers, since the rounds of one are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from cluster.bench.statistics import Mean
from cluster.speculation.messages import SessionSpec
from verifier_service.drafting.port import Deliver, DraftingPort, DraftReply, DraftTicket

_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Round:
    """drafted: tokens of its block, of a tree one after another, all of them verified; emitted: accepted ones
    and the verifier's own."""

    drafted: int
    emitted: int


class Watched:
    """A port whose rounds are written down: what each drafted, and what the next ticket says was committed.

    The round that ends an answer is cut by it, and is left out. rounds: by sequence, for a planner that asks
    for a block in every round; asked: rounds that asked for a block, by sequence and committed tokens;
    drafted: those that got a draft.
    """

    def __init__(self, port: DraftingPort) -> None:
        self._port = port
        self._deliver: Deliver | None = None
        self._pending: dict[int, int] = {}
        self.rounds: dict[int, list[Round]] = {}
        self.asked: set[tuple[int, int]] = set()
        self.drafted = 0

    @property
    def foresees(self) -> bool:
        return self._port.foresees

    @property
    def apart(self) -> bool:
        return self._port.apart

    @property
    def reads(self) -> bool:
        return self._port.reads

    @property
    def at_once(self) -> bool:
        return self._port.at_once

    def hold(self) -> None:
        self._port.hold()

    def send(self) -> None:
        self._port.send()

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._port.connect(self._reply)

    def open(self, spec: SessionSpec) -> None:
        self.rounds[spec.sequence] = []
        self._port.open(spec)

    def feed(self, sequence: int, rows: Tensor) -> None:
        self._port.feed(sequence, rows)

    def request(self, ticket: DraftTicket) -> bool:
        before = self._pending.pop(ticket.sequence, None)
        if before is not None:
            self.rounds[ticket.sequence].append(Round(before, len(ticket.committed)))
        self.asked.add((ticket.sequence, ticket.base))
        return self._port.request(ticket)

    def close(self, sequence: int, reason: str) -> None:
        self._pending.pop(sequence, None)
        self._port.close(sequence, reason)

    def _reply(self, reply: DraftReply) -> None:
        assert self._deliver is not None
        count = reply.block.depth() if reply.block is not None else 0
        self._pending[reply.sequence] = count
        self.drafted += count > 0
        self._deliver(reply)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of some answers. rounds: with a draft at least; undrafted: those without; length: tokens emitted in a
    round with a draft, None where there was none; overall: in any round; by_position: of the rounds that
    drafted a k-th token, those that accepted it."""

    answers: int
    rounds: int
    undrafted: int
    length: Mean | None
    overall: Mean | None
    by_position: tuple[float, ...]

    @property
    def undrafted_share(self) -> float:
        every = self.rounds + self.undrafted
        return self.undrafted / every if every else 0.0


def acceptance(answers: Sequence[Sequence[Round]]) -> Acceptance:
    """Pooled over the answers' rounds."""
    rounds = [each for answer in answers for each in answer]
    drafted = [each for each in rounds if each.drafted]
    longest = max((each.drafted for each in drafted), default=0)
    by_position = []
    for k in range(1, longest + 1):
        reached = [each for each in drafted if each.drafted >= k]
        by_position.append(sum(each.emitted > k for each in reached) / len(reached))
    return Acceptance(
        answers=len(answers),
        rounds=len(drafted),
        undrafted=len(rounds) - len(drafted),
        length=pooled(
            [(sum(r.emitted for r in a if r.drafted), sum(r.drafted > 0 for r in a)) for a in answers]
        ),
        overall=pooled([(sum(r.emitted for r in a), len(a)) for a in answers]),
        by_position=tuple(by_position),
    )


def pooled(counts: Sequence[tuple[float, float]]) -> Mean | None:
    """The sum of numerators over that of denominators, one pair an answer, with the bootstrap interval of
    95 % over answers, seeded; None for nothing."""
    over, under = np.asarray(counts, np.float64).reshape(-1, 2).T
    if not under.sum():
        return None
    picks = np.random.default_rng(0).integers(0, len(counts), (_RESAMPLES, len(counts)))
    below = under[picks].sum(axis=1)
    drawn = (over[picks].sum(axis=1) / np.where(below > 0, below, np.nan))[below > 0]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Mean(float(over.sum() / under.sum()), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer without speculation and with it, one after the other. tokens: of either; switched_off: of
    the rounds after the prompt's, those that asked for no block."""

    tokens: int
    plain_seconds: float
    seconds: float
    rounds: int
    switched_off: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second, pooled; ratio: of speculation to none, same answers, same run; better: to the faster
    of none and another drafter, if there is one."""

    plain: float
    drafting: float
    ratio: Mean
    switched_off_share: float
    better: Mean | None = None


def speed(timed: Sequence[Timed], other: Sequence[Timed] = ()) -> Speed | None:
    """None without a measurement. other: the same answers with another drafter."""
    ratio = pooled([(each.plain_seconds, each.seconds) for each in timed])
    if ratio is None:
        return None
    tokens, rounds = sum(each.tokens for each in timed), sum(each.rounds for each in timed)
    better = None
    if other:
        plainly, otherwise = ([each.plain_seconds for each in timed], [each.seconds for each in other])
        faster = min(plainly, otherwise, key=sum)
        better = pooled(list(zip(faster, [each.seconds for each in timed], strict=True)))
    return Speed(
        plain=tokens / sum(each.plain_seconds for each in timed),
        drafting=tokens / sum(each.seconds for each in timed),
        ratio=ratio,
        switched_off_share=sum(each.switched_off for each in timed) / rounds if rounds else 0.0,
        better=better,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """One drafter at one temperature in one domain."""

    drafter: str
    temperature: float
    domain: str
    acceptance: Acceptance | None = None
    speed: Speed | None = field(default=None)
