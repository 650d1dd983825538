"""Single-stream speed, side by side: cluster, engine and transformers on the same prompts in one run.

Every contestant answers every kind in every repetition, so each ratio is of neighbours in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.bench.machine import Machine, median
from cluster.bench.prompts import KINDS
from cluster.bench.speed.contestants import Contestant
from cluster.bench.statistics import Ratio, geometric_mean, paired_ratio


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that was promised: numerator over denominator, on one kind, on each, or as geometric mean.

    kinds: those on which it is promised; mean: their geometric mean instead of each by itself.
    """

    numerator: str
    denominator: str
    factor: float
    kinds: tuple[str, ...]
    mean: bool = False


NONE, COUPLED = "in-process none", "in-process coupled n-gram"
GENERATE, LOOKUP = "transformers generate", "transformers prompt lookup"
CLUSTER = "cluster coupled n-gram"
INTEGERS = "in-process none, int8"

TARGETS = (
    Target(NONE, GENERATE, 1.15, tuple(KINDS), mean=True),
    Target(COUPLED, NONE, 0.92, tuple(KINDS)),
    Target(COUPLED, NONE, 2.0, ("edit",)),
    Target(CLUSTER, COUPLED, 0.92, tuple(KINDS), mean=True),
    Target(INTEGERS, NONE, 1.8, tuple(KINDS), mean=True),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer: tokens over seconds, prefill included."""

    contestant: str
    kind: str
    repetition: int
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """A target and what was measured of it."""

    target: Target
    label: str
    ratio: Ratio
    verdict: str


def measure(
    contestants: Sequence[Contestant], tokens: int, pairs: int, progress: Callable[[str], None]
) -> list[Timing]:
    """Times every contestant on every kind, `pairs` times, after one untimed answer each.

    Raises RuntimeError if a contestant gives other tokens than on its first answer to a kind.
    """
    for contestant in contestants:
        progress(f"warming up {contestant.name}")
        contestant.answer("story", 8)
    timings: list[Timing] = []
    first: dict[tuple[str, str], list[int]] = {}
    for repetition in range(pairs):
        for kind in KINDS:
            # Nobody always follows the same neighbour.
            shift = repetition % len(contestants)
            for contestant in [*contestants[shift:], *contestants[:shift]]:
                progress(f"{repetition + 1}/{pairs} {kind}: {contestant.name}")
                began = time.perf_counter()
                answer = contestant.answer(kind, tokens)
                seconds = time.perf_counter() - began
                if first.setdefault((contestant.name, kind), answer) != answer:
                    raise RuntimeError(f"{contestant.name} answered {kind} with other tokens than before")
                timings.append(Timing(contestant.name, kind, repetition, len(answer), seconds))
    return timings


def rates(timings: Sequence[Timing], contestant: str, kind: str) -> list[float]:
    """Tokens per second of each repetition, in order."""
    return [t.rate for t in timings if t.contestant == contestant and t.kind == kind]


def findings(timings: Sequence[Timing], targets: Sequence[Target] = TARGETS) -> list[Finding]:
    """What was measured of each target whose contestants took part."""
    present = {timing.contestant for timing in timings}
    found = []
    for target in targets:
        if not {target.numerator, target.denominator} <= present:
            continue
        over = {k: rates(timings, target.numerator, k) for k in target.kinds}
        under = {k: rates(timings, target.denominator, k) for k in target.kinds}
        if target.mean:
            pairs = range(len(next(iter(over.values()))))
            ratio = paired_ratio(
                [geometric_mean([over[k][i] for k in target.kinds]) for i in pairs],
                [geometric_mean([under[k][i] for k in target.kinds]) for i in pairs],
            )
            found.append(Finding(target, "geometric mean", ratio, ratio.against(target.factor)))
        else:
            for kind in target.kinds:
                ratio = paired_ratio(over[kind], under[kind])
                found.append(Finding(target, kind, ratio, ratio.against(target.factor)))
    return found


def limit(machine: Machine, weights: int) -> float:
    """Tokens per second of plain decoding if a step took no longer than reading the weights once."""
    return machine.bandwidth / weights


def render(timings: Sequence[Timing], machine: Machine, weights: int, console: Console) -> None:
    """The tables: rates by kind, ratios against their targets, and the machine's limit."""
    names = list(dict.fromkeys(t.contestant for t in timings))
    table = Table("tokens/s (median)", *KINDS, "geometric mean", title="Speed, greedy, one request at a time")
    for name in names:
        medians = [median(rates(timings, name, kind)) for kind in KINDS]
        table.add_row(name, *(f"{rate:.1f}" for rate in medians), f"{geometric_mean(medians):.1f}")
    console.print(table)
    ratios = Table("ratio", "on", "median [95 % interval]", "target", "verdict", title="Ratios of neighbours")
    for finding in findings(timings):
        target = finding.target
        ratios.add_row(
            f"{target.numerator} / {target.denominator}",
            finding.label,
            str(finding.ratio),
            f"≥ {target.factor:g}",
            finding.verdict,
        )
    console.print(ratios)
    console.print(
        f"{machine.processor}, {machine.cores} cores, {machine.threads} threads, torch {machine.torch}: "
        f"reads {machine.bandwidth / 1e9:.1f} GB/s, so {weights / 1e6:.0f} MB of weights bound plain "
        f"decoding to {limit(machine, weights):.1f} tokens/s"
    )


def as_json(timings: Sequence[Timing], machine: Machine, weights: int) -> dict[str, Any]:
    """Everything that was measured, for machines."""
    return {
        "machine": asdict(machine),
        "weight_bytes": weights,
        "limit_tokens_per_second": limit(machine, weights),
        "timings": [asdict(timing) for timing in timings],
        "findings": [asdict(finding) for finding in findings(timings)],
    }
