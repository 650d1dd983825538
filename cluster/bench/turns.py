"""Engines that take turns at the same requests: one target, one machine, one run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.bench.encoding import chat
from cluster.bench.prompts import KINDS
from cluster.bench.statistics import Ratio, paired_ratio
from cluster.scheduling import Budget, Frontier, History, Planner, Round
from cluster.scheduling.acceptance import measured
from cluster.scheduling.rates import planned
from cluster.speculation.law import NONE, Law
from cluster.speculation.messages import BlockPlan
from cluster.speculation.request import GenerationEvent, GenerationRequest
from cluster.speculation.sampling import Sampling
from verifier_service.batch import Answer
from verifier_service.build import LoadedTarget
from verifier_service.engine.engine import Engine

# Contestants that several measurements have.
OFF, LOCAL = "no speculation", "drafter in process"


def requests(loaded: LoadedTarget, kind: str, count: int, tokens: int) -> list[GenerationRequest]:
    """`count` requests of one kind of prompt, each with its own seed, that answer with `tokens` tokens."""
    prompt = chat(loaded, KINDS[kind])
    return [
        GenerationRequest(
            request_id=f"{kind} {seed}",
            prompt_ids=prompt,
            sampling=Sampling(temperature=0.3),
            law=NONE,
            requested_law=NONE,
            seed=seed,
            max_tokens=tokens,
            domain=kind,
            ignore_eos=True,
        )
        for seed in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Turn:
    """All requests once. rounds, drafted, accepted, meanwhile: as in Provenance, summed; decoding:
    seconds after each answer's first token, summed; answers: tokens."""

    tokens: int
    seconds: float
    rounds: int
    drafted: int
    accepted: int
    meanwhile: int
    decoding: float = 0.0
    answers: tuple[tuple[int, ...], ...] = ()

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class _Timed(Answer):
    """first, last: when its first event came, and its last."""

    first: float = 0.0
    last: float = 0.0

    def take(self, event: GenerationEvent) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        Answer.take(self, event)


@dataclass(slots=True)
class Contestant:
    """An engine under one law; turns: so far, the first one, which fills caches and means, left out."""

    name: str
    engine: Engine
    law: Law
    turns: list[Turn] = field(default_factory=list)

    def take(self, requests: Sequence[GenerationRequest], concurrent: int) -> Turn:
        """Answers all, `concurrent` at a time. Raises RuntimeError when one fails."""
        began = time.perf_counter()
        waiting, answers = list(reversed(requests)), list[_Timed]()
        while waiting or any(answer.finished is None for answer in answers):
            while waiting and sum(answer.finished is None for answer in answers) < concurrent:
                answers.append(_Timed())
                asked = replace(waiting.pop(), law=self.law, requested_law=self.law)
                self.engine.submit(asked, answers[-1].take)
            self.engine.step()
            for answer in answers:
                if answer.failure is not None:
                    raise RuntimeError(answer.failure)
        seconds = time.perf_counter() - began
        made = [answer.finished.provenance for answer in answers if answer.finished is not None]
        return Turn(
            sum(len(answer.token_ids) for answer in answers),
            seconds,
            sum(each.rounds for each in made),
            sum(each.draft_tokens for each in made),
            sum(each.accepted_tokens for each in made),
            sum(each.meanwhile_rounds for each in made),
            sum(answer.last - answer.first for answer in answers),
            tuple(tuple(answer.token_ids) for answer in answers),
        )

    @property
    def rates(self) -> list[float]:
        return [turn.rate for turn in self.turns]

    @property
    def row(self) -> dict[str, float]:
        """Tokens a second, the median of turns; of all turns tokens and drafts a round, acceptance, share of
        rounds that went on while their block was under way."""
        names = ("tokens", "rounds", "drafted", "accepted", "meanwhile")
        total = [sum(getattr(turn, name) for turn in self.turns) for name in names]
        tokens, rounds, drafted, accepted, meanwhile = total
        return {
            "tokens_per_second": statistics.median(self.rates),
            "tokens_per_round": tokens / rounds,
            "drafts_per_round": drafted / rounds,
            "acceptance": accepted / drafted if drafted else 0.0,
            "meanwhile": meanwhile / rounds,
        }


def take_turns(
    contestants: Sequence[Contestant],
    requests: Sequence[GenerationRequest],
    concurrent: int,
    pairs: int,
    say: Callable[[str], None],
    ready: Callable[[], None] | None = None,
) -> None:
    """Every contestant once to warm up, then `pairs` times, each time another one first; ready: called after
    the warm-up. Raises RuntimeError when a request fails, and when answers differ."""
    said = set()
    for repetition in range(-1, pairs):
        shift = repetition % len(contestants)
        for contestant in (*contestants[shift:], *contestants[:shift]):
            say(f"{concurrent} at a time, repetition {repetition + 1} of {pairs}: {contestant.name}")
            turn = contestant.take(requests, concurrent)
            if repetition >= 0:
                contestant.turns.append(turn)
            said.add(turn.answers)
            if len(said) > 1:
                raise RuntimeError(f"{contestant.name} answers with other tokens than those before it")
        if repetition < 0 and ready is not None:
            ready()


def against(contestants: Mapping[str, Contestant], name: str, base: str) -> Ratio:
    """The throughput of one over that of another, pair by pair."""
    return paired_ratio(contestants[name].rates, contestants[base].rates)


@dataclass(slots=True)
class Predicting:
    """A planner that writes down what it knew: of one request at a time, so that rounds follow each other.

    lengths: planned; rounds: that are over.
    """

    planner: Planner
    most: int
    hides: bool
    lengths: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    _plans: list[tuple[History, BlockPlan]] = field(default_factory=list)

    def plan(self, history: History) -> BlockPlan:
        plan = self.planner.plan(history)
        if history.verify is not None:
            self._plans.append((history, plan))
            self.lengths.append(plan.length)
        # The same object until another round is over.
        if history.rounds and (not self.rounds or history.rounds[-1] is not self.rounds[-1]):
            self.rounds.append(history.rounds[-1])
        return plan

    def admit(self, frontiers: Sequence[Frontier], budget: Budget) -> list[int]:
        return self.planner.admit(frontiers, budget)

    def seconds_a_token(self) -> float:
        """As the cost model has it, with the costs that were known before each round and the acceptance that
        came about in rounds of the same planned length, since a planner plans longer blocks where drafts are
        better; nan before anything was planned."""
        every = measured(self.rounds, self.most)
        alike = {
            length: [each for each in self.rounds if each.planned == length] for length in set(self.lengths)
        }
        expected = {
            length: measured(rounds, self.most) if rounds else every for length, rounds in alike.items()
        }
        promised = [
            planned(history, expected[plan.length], plan, self.hides) for history, plan in self._plans
        ]
        tokens = sum(each.tokens for each in promised)
        return sum(each.seconds for each in promised) / tokens if tokens else math.nan

    def forget(self) -> None:
        self.lengths.clear()
        self.rounds.clear()
        self._plans.clear()
