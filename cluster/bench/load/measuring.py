"""What speculation does under load, and whether a lone request drafts as much as is best: the default planner
against no speculation with 1 to 64 requests at a time, and against every fixed length with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry.trace import NoOpTracer

from cluster.bench.prompts import KINDS
from cluster.bench.rig import DrafterProcess, Loop
from cluster.bench.statistics import Ratio
from cluster.bench.turns import LOCAL, OFF, Contestant, against, requests, take_turns
from cluster.drafting import NgramDrafter
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED, NONE
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.build import LoadedTarget, build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.spec import VerifierSpec

REMOTE, CHOSEN = "drafter apart", "goodput"
# Requests at a time, and of a turn over these.
LOADS = (1, 4, 16, 64)
_WAVES = 3
LENGTHS = (2, 4, 8)
# Kinds of prompts where an eager n-gram drafter is mostly right, and mostly wrong.
GOOD, USELESS = "edit", "story"
# Of the throughput without speculation; of the goodput of the best fixed length.
LEAST, NEAR_BEST = 0.98, 0.95


@dataclass(frozen=True, slots=True)
class Load:
    """concurrent: requests at a time; rows, rates: of each contestant; ratios: throughput over that without
    speculation."""

    concurrent: int
    rows: dict[str, dict[str, float]]
    rates: dict[str, list[float]]
    ratios: dict[str, Ratio]

    @property
    def verdicts(self) -> dict[str, str]:
        return {f"{name}: ≥ {LEAST} of off": ratio.against(LEAST) for name, ratio in self.ratios.items()}


@dataclass(frozen=True, slots=True)
class Choice:
    """One request at a time of a kind of prompt. best: the fixed length with the highest throughput; ratio:
    of the planner's own choices over it."""

    kind: str
    rows: dict[str, dict[str, float]]
    best: str
    ratio: Ratio

    @property
    def verdict(self) -> str:
        return self.ratio.against(NEAR_BEST)


def under_load(
    loaded: LoadedTarget, spec: VerifierSpec, tokens: int, pairs: int, say: Callable[[str], None]
) -> list[Load]:
    """Five kinds of prompts in turn, drafted for by an n-gram drafter in process and by one over gRPC. Raises
    RuntimeError when a request fails or answers differ."""
    found = []
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        drafter = DrafterProcess(DrafterSpec(target=spec.model, kind=DrafterKind.NGRAM))
        stack.callback(drafter.kill)
        for concurrent in LOADS:
            # Who is done makes room for the next: else answers that end at different times would leave fewer
            # and fewer, and what is measured would be a batch that runs empty.
            count = max(concurrent if concurrent == 1 else _WAVES * concurrent, len(KINDS))
            each = [requests(loaded, kind, -(-count // len(KINDS)), tokens) for kind in KINDS]
            asked = [request for group in zip(*each, strict=True) for request in group][:count]
            hello = HelloInfo(loaded.tokenizer_hash, len(loaded.tokenizer), spec.model, "", "load")
            port = RemoteDrafting(StaticResolver(drafter.address), hello, loop.loop)
            local = LocalDrafting(NgramDrafter())
            contestants = [
                Contestant(OFF, build_engine(loaded, spec, None, NoOpTracer()), NONE),
                Contestant(LOCAL, build_engine(loaded, spec, local, NoOpTracer()), COUPLED),
                Contestant(REMOTE, build_engine(loaded, spec, port, NoOpTracer()), COUPLED),
            ]
            try:
                take_turns(contestants, asked, concurrent, pairs, say)
            finally:
                loop.do(port.aclose())
            by_name = {each.name: each for each in contestants}
            rows = {each.name: each.row for each in contestants}
            rates = {each.name: each.rates for each in contestants}
            ratios = {name: against(by_name, name, OFF) for name in (LOCAL, REMOTE)}
            found.append(Load(concurrent, rows, rates, ratios))
    return found


def choices(
    loaded: LoadedTarget, spec: VerifierSpec, tokens: int, pairs: int, say: Callable[[str], None]
) -> list[Choice]:
    """A drafter that always speaks: after one token that occurred before, whether or not it is right."""
    found = []
    for kind in (GOOD, USELESS):
        asked = requests(loaded, kind, 3, tokens)

        def drafting(own: VerifierSpec, name: str) -> Contestant:
            port = LocalDrafting(NgramDrafter(minimum=1, growth=float(spec.block_length)))
            return Contestant(name, build_engine(loaded, own, port, NoOpTracer()), COUPLED)

        fixed = [
            drafting(replace(spec, planner=PlannerName.FIXED, block_length=k), f"{k} drafts") for k in LENGTHS
        ]
        plain = Contestant("0 drafts", build_engine(loaded, spec, None, NoOpTracer()), NONE)
        contestants = [plain, *fixed, drafting(spec, CHOSEN)]
        take_turns(contestants, asked, 1, pairs, say)
        by_name = {each.name: each for each in contestants}
        rows = {each.name: each.row for each in contestants}
        best = max([plain, *fixed], key=lambda each: each.row["tokens_per_second"]).name
        found.append(Choice(kind, rows, best, against(by_name, CHOSEN, best)))
    return found


def as_dict(loads: Sequence[Load], chosen: Sequence[Choice]) -> dict[str, Any]:
    """For machines."""
    return {
        "loads": [
            {
                "concurrent": each.concurrent,
                "contestants": each.rows,
                "tokens_per_second": each.rates,
                "over_off": {name: [r.median, r.low, r.high] for name, r in each.ratios.items()},
                "verdicts": each.verdicts,
            }
            for each in loads
        ],
        "choices": [
            {
                "prompts": each.kind,
                "contestants": each.rows,
                "best_fixed": each.best,
                "over_best": [each.ratio.median, each.ratio.low, each.ratio.high],
                "verdict": each.verdict,
            }
            for each in chosen
        ],
    }
