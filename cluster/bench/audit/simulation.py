"""How many tokens live audits need to find a planted fault, and that they are silent without one.

Rows of a target and of a sampled drafter, recorded once, are gone over again and again with new noise: each
place follows the one before it, whatever was emitted there. Drafting, verification and evidence are the
shipped ones, and laws that are exact are exact on these rows as on any.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster.speculation.audit import ALARM
from cluster.speculation.catalogue import parse
from cluster.speculation.law import BLOCK, COUPLED, REJECTION, Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import SparseRow, pack, truncate
from cluster.speculation.race import winners
from verifier_service.audit.betting import DECISIONS, RANKS, Martingale
from verifier_service.audit.evidence import evidence
from verifier_service.verification import verify

LENGTH = 4
# Tokens under one seed.
_ANSWER = 64
_LENIENT = parse("collaborative:lenience", {"lenience": 0.9})
_RECORDED_TEMPERATURE = 0.7
_ENTRIES = 16
# Of rounds whose block is lost, where that hangs on nothing.
_LOST = 0.3
# Of a round, where one that kept nothing starts again.
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Places:
    """p, q: the target's and the drafter's rows, float32 [places, V] each, at temperature 1."""

    p: Tensor
    q: Tensor


@dataclass(frozen=True, slots=True)
class Scenario:
    """law: what the answers say; fault: empty, or one of those below; by: which audits must find it; perhaps:
    which do or do not, as the drafter is good or weak."""

    law: Law
    fault: str = ""
    by: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.law}, {self.fault}" if self.fault else str(self.law)


AUDITS = ("ranks", "drawn", "kept", "replay")
LENIENCE = "lenience 0.9"
TEMPERATURE = "drawn at T = 1, recorded at 0.7"
TOP = "drawn from the whole row, its first 16 and the token recorded"
FRESH = "fresh noise where blocks are lost at random"
FRESH_BY_CONTENT = "fresh noise where blocks are lost for what they say"
ANEW = "fresh noise and another block where no draft was kept, up to four"

SCENARIOS = (
    Scenario(REJECTION, LENIENCE, ("kept",)),
    Scenario(REJECTION, TEMPERATURE, ("drawn",)),
    Scenario(BLOCK, TEMPERATURE, ("drawn",)),
    Scenario(REJECTION, TOP, ("drawn",)),
    Scenario(BLOCK, TOP, ("drawn",)),
    Scenario(COUPLED, FRESH, ("replay",)),
    Scenario(COUPLED, FRESH_BY_CONTENT, ("replay",), perhaps=("ranks",)),
    Scenario(COUPLED, ANEW, ("replay",), perhaps=("ranks",)),
    Scenario(REJECTION),
    Scenario(BLOCK),
    Scenario(COUPLED),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """tokens: emitted; mean_rank: the mean of 1 - 2u over what was bet on; bets: how many there were of each
    kind; p_values: of them in the end; needed: tokens after which each audit had found the fault, None if it
    never did."""

    tokens: int
    rounds: int
    mean_rank: float
    bets: dict[str, int]
    p_values: dict[str, float]
    needed: dict[str, int | None]

    def as_expected(self, scenario: Scenario) -> bool:
        """Whether the audits that must find it did, and those that must not did not: any where nothing is
        wrong, and ranks where noise is wrong but the law is not."""
        found = {name for name, tokens in self.needed.items() if tokens is not None}
        if not scenario.fault:
            return not found
        if scenario.law == COUPLED:
            found -= set(scenario.perhaps)
            return found == set(scenario.by)
        return found >= set(scenario.by)


def simulate(places: Places, scenario: Scenario, tokens: int, first_seed: int = 0) -> Outcome:
    """Emits that many tokens under the scenario and audits every round."""
    ranks, drawn, kept = Martingale(RANKS), Martingale(RANKS), Martingale(DECISIONS)
    needed: dict[str, int | None] = dict.fromkeys(AUDITS)
    p_values: dict[str, float] = {}
    emitted, rounds, total, seed = 0, 0, 0.0, first_seed
    until = _ANSWER
    chance = random.Random(first_seed)
    while emitted < tokens:
        if emitted >= until:
            seed, until = seed + 1, emitted + _ANSWER
        round_ = _Round(places, emitted, seed)
        block, verdict = round_.play(scenario, chance)
        noise = Noise(seed, emitted)
        uniforms = [noise.uniform(Purpose.AUDIT, k) for k in range(len(verdict.tokens) + len(block.tokens))]
        seen = evidence(scenario.law, round_.rows(len(block.tokens)), block, verdict, uniforms)
        emitted += len(verdict.tokens)
        rounds += 1
        total += sum(seen.ranks)
        ranks.observe(seen.ranks)
        drawn.observe(seen.drawn)
        kept.observe(seen.kept)
        p_values = {"ranks": ranks.p_value, "drawn": drawn.p_value, "kept": kept.p_value}
        for name, p_value in p_values.items():
            if needed[name] is None and p_value < ALARM:
                needed[name] = emitted
        if scenario.law == COUPLED and needed["replay"] is None and round_.differs(verdict):
            needed["replay"] = emitted
    return Outcome(
        tokens=emitted,
        rounds=rounds,
        mean_rank=total / max(ranks.count, 1),
        bets={"ranks": ranks.count, "drawn": drawn.count, "kept": kept.count},
        p_values=p_values,
        needed=needed,
    )


class _Round:
    """One round at a place. base: absolute position of its first token."""

    def __init__(self, places: Places, base: int, seed: int) -> None:
        self._p, self._q = places.p, places.q
        self._base = base
        self._seed = seed
        self._noise = Noise(seed, base)

    def _index(self, k: int) -> int:
        return (self._base + k) % self._p.shape[0]

    def rows(self, drafts: int) -> Tensor:
        """The target's: [drafts + 1, V]."""
        return self._p[[self._index(k) for k in range(drafts + 1)]]

    def play(self, scenario: Scenario, chance: random.Random) -> tuple[DraftBlock, Verdict]:
        """The block that was verified and what came of it."""
        if scenario.law == COUPLED:
            return self._coupled(scenario.fault, chance)
        block = self._proposed(scenario.fault)
        law = _LENIENT if scenario.fault == LENIENCE else scenario.law
        return block, verify(law, self.rows(LENGTH), block, self._noise)

    def _proposed(self, fault: str) -> DraftBlock:
        field = DraftField(derive_key(self._seed, Purpose.DRAFT), self._base)
        tokens, records = [], []
        for k in range(LENGTH):
            q = self._q[self._index(k)]
            drawn = truncate(q, q.shape[0] if fault == TOP else _ENTRIES)
            tokens.append(field.draw(k, drawn))
            records.append(_recorded(drawn, tokens[-1], fault))
        return DraftBlock(tuple(tokens), tuple(max(row.probs) for row in records), proposal=pack(records))

    def _coupled(self, fault: str, chance: random.Random) -> tuple[DraftBlock, Verdict]:
        block, verdict = self._drafted(self._noise)
        if fault == ANEW:
            for attempt in range(1, _TRIES):
                if verdict.accepted:
                    break
                block, verdict = self._drafted(self._fresh(attempt))
            return block, verdict
        lost = fault == FRESH and chance.random() < _LOST
        if fault == FRESH_BY_CONTENT:
            # A drafter that is slow whenever it has to say something unlikely.
            lost = block.tokens[0] != int(self._q[self._index(0)].argmax())
        if lost:
            block = DraftBlock()
            verdict = verify(COUPLED, self.rows(0), block, self._fresh(1))
        return block, verdict

    def _drafted(self, noise: Noise) -> tuple[DraftBlock, Verdict]:
        drafts = self._winners(self._q, LENGTH, noise)
        block = DraftBlock(tuple(drafts), (1.0,) * LENGTH)
        return block, verify(COUPLED, self.rows(LENGTH), block, noise)

    def _fresh(self, attempt: int) -> Noise:
        """Noise that is not the request's."""
        return Noise(self._seed ^ attempt << 60, self._base)

    def differs(self, verdict: Verdict) -> bool:
        """Whether plain decoding with the same seed gives other tokens."""
        return self._winners(self._p, len(verdict.tokens), self._noise) != list(verdict.tokens)

    def _winners(self, rows: Tensor, count: int, noise: Noise) -> list[int]:
        """What the noise draws from the next rows."""
        steps = range(count)
        positions = [self._base + k for k in steps]
        return winners([noise.field] * count, positions, [rows[self._index(k)] for k in steps])


def _recorded(drawn: SparseRow, token: int, fault: str) -> SparseRow:
    if fault == TEMPERATURE:
        weights = torch.tensor(drawn.probs, dtype=torch.float64).pow(1.0 / _RECORDED_TEMPERATURE)
        return SparseRow(drawn.ids, tuple((weights / weights.sum()).float().tolist()))
    if fault == TOP:
        pairs = sorted(zip(drawn.ids, drawn.weights, strict=True), key=lambda pair: -pair[1])
        kept = sorted(dict([*pairs[:_ENTRIES], *(pair for pair in pairs if pair[0] == token)]).items())
        return SparseRow(tuple(each for each, _ in kept), tuple(weight for _, weight in kept))
    return drawn
