"""The table of laws and rules: exact distances between what is emitted and the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.lab import budgets
from cluster.lab.budgets import BUDGETS, Budget
from cluster.lab.enumeration import Run, outcomes
from cluster.lab.rounds import Request
from cluster.lab.rules import RULES, STRICT, Rule
from cluster.lab.world import Prefix, World, distance, random_world
from cluster.speculation.catalogue import parse
from cluster.speculation.law import Law

BLOCK_LENGTH = 2
# What rules are about, in the table's order.
KINDS = ("schedule", "budget", "proposal", "noise")
# Distances that are no more than rounding.
EXACT = 1e-12
_SEEDS = range(6)


@dataclass(frozen=True, slots=True)
class Cell:
    """tv: the largest total variation distance of the output law from the target over the worlds, None
    where the rule cannot be played under the law; expected: whether the rule is known to bias it."""

    rule: str
    kind: str
    law: str
    tv: float | None
    biased: bool

    @property
    def as_expected(self) -> bool:
        return self.tv is None or (self.tv > 0.01 if self.biased else self.tv < EXACT)


def worlds() -> list[World]:
    """Vocabularies of two and of three tokens, rows at random after every prefix."""
    return [random_world(seed, vocab) for vocab in (2, 3) for seed in _SEEDS]


def error(world: World, law: Law, rule: Rule, length: int = BLOCK_LENGTH) -> float:
    """TV between the target and the law of the first tokens, as many as a round can emit or, for rules of
    two rounds, one more."""
    horizon = length + 2

    def play(run: Run) -> Prefix:
        request = Request(run, world, law, length)
        rule.play(request)
        return request.finish(horizon)

    return distance(world.law(outcomes(play), horizon), world.law({(): 1.0}, horizon))


def compute(rules: Sequence[Rule] = RULES) -> Iterator[Cell]:
    """Rule by rule, each under every law."""
    everywhere = worlds()
    for rule in rules:
        for law in STRICT:
            tv = None
            if law in rule.laws:
                played = [world for world in everywhere if world.vocab == 2 or not rule.twice]
                tv = max(error(world, Law(law), rule) for world in played)
            yield Cell(rule.name, rule.kind, law, tv, law in rule.biased)


def compute_budgets(chosen: Sequence[Budget] = BUDGETS) -> Iterator[Cell]:
    """Rule by rule, each under every law."""
    for budget in chosen:
        for law in STRICT:
            tv = max(budgets.error(pair, Law(law), budget) for pair in budgets.pairs())
            yield Cell(budget.name, "budget", law, tv, law in budget.biased)


@dataclass(frozen=True, slots=True)
class LossyLaw:
    """What a lossy law makes of one drafted position, at worst over the worlds."""

    law: str
    params: dict[str, float]
    tv: float
    overshoot: float


LOSSY: tuple[Law, ...] = (
    parse("truncation:min_p", {"min_p": 0.1}),
    parse("truncation:typical"),
    parse("collaborative:lenience", {"lenience": 0.8}),
    parse("collaborative:interpolation", {"lambda": 0.5, "ceiling": 1.25}),
    parse("collaborative:mentored", {"max_kl": 0.02}),
    parse("collaborative:cactus", {"delta": 0.05, "ceiling": 1.25}),
    *(
        parse(f"collaborative:{rule}", {"max_distortion": 0.02})
        for rule in ("lenience", "interpolation", "mentored", "cactus")
    ),
)


def compute_lossy() -> list[LossyLaw]:
    """The law of the first token of blocks of one draft, enumerated like all others."""
    found = []
    for law in LOSSY:
        tv, overshoot = 0.0, 1.0
        for world in worlds():

            def play(run: Run, world: World = world, law: Law = law) -> Prefix:
                request = Request(run, world, law, 1)
                return request.verify(request.draft()).tokens[:1]

            out = world.law(outcomes(play), 1)
            target = world.law({(): 1.0}, 1)
            tv = max(tv, distance(out, target))
            overshoot = max(overshoot, float((out / target).max()))
        found.append(LossyLaw(law.name, dict(law.params), tv, overshoot))
    return found


def as_dict(cells: Sequence[Cell], lossy: Sequence[LossyLaw]) -> dict[str, Any]:
    """For machines."""
    return {
        "block_length": BLOCK_LENGTH,
        "worlds": len(worlds()),
        "exact_below": EXACT,
        "cells": [asdict(cell) | {"as_expected": cell.as_expected} for cell in cells],
        "lossy": [asdict(each) for each in lossy],
    }
