"""What a network between verifier and drafter costs, and what of it is hidden: the same requests with round
trips of 0, ½, 1 and 2 verify steps, without speculation, with the drafter in the verifier's process, and, as
the control, with nothing hidden.

The drafter, an n-gram drafter in a process of its own, is asked over gRPC through a proxy that delays.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry.trace import NoOpTracer

from cluster.bench.network.delay import DelayingProxy
from cluster.bench.rig import DrafterProcess, Loop
from cluster.bench.statistics import Ratio, paired_ratio
from cluster.bench.turns import LOCAL, OFF, Contestant, Predicting, against, requests, take_turns
from cluster.drafting import NgramDrafter
from cluster.scheduling import PlannerName, planner_of
from cluster.speculation.law import COUPLED, NONE
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.build import LoadedTarget, build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.spec import VerifierSpec

UNHIDDEN = "nothing hidden"
# Round trips, in verify steps.
TRIPS = (0.0, 0.5, 1.0, 2.0)
CONTROL = 1.0
# Of the throughput at a round trip of 0, at one of CONTROL steps; of the predicted time per token.
LEAST, MOST_UNHIDDEN, WITHIN = 0.85, 0.7, 0.10
# Requests of a turn, over those at a time.
_WAVES = 6
# Longer than any block takes: sequences that are ready wait for all others.
_LOCKSTEP_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """concurrent: requests at a time; step: seconds of the verify step that round trips are measured in;
    rows, rates: of each contestant; hidden, unhidden: throughput at CONTROL steps over that at 0; predicted:
    by round trip, for one request at a time: measured seconds per token over those that the cost model
    predicts for the measured acceptance."""

    concurrent: int
    step: float
    rows: dict[str, dict[str, float]]
    rates: dict[str, list[float]]
    hidden: Ratio
    unhidden: Ratio
    predicted: dict[str, float]

    @property
    def verdicts(self) -> dict[str, str]:
        if self.concurrent == 1:
            error = max(abs(self.predicted[trip(steps)] - 1.0) for steps in TRIPS)
            within = "met" if error <= WITHIN else "missed"
            return {f"time per token within {WITHIN:.0%} of the prediction": within}
        return {
            f"≥ {LEAST} of the throughput at 0": self.hidden.against(LEAST),
            f"nothing hidden: < {MOST_UNHIDDEN}": _below(self.unhidden, MOST_UNHIDDEN),
        }


def _below(ratio: Ratio, limit: float) -> str:
    if ratio.high < limit:
        return "met"
    return "missed" if ratio.low >= limit else "not resolved"


def trip(steps: float) -> str:
    """The name of the contestant with a round trip of `steps` verify steps."""
    return f"round trip {steps:g} steps"


def measure(
    loaded: LoadedTarget,
    spec: VerifierSpec,
    concurrent: int,
    tokens: int,
    pairs: int,
    say: Callable[[str], None],
) -> Outcome:
    """Edits, where drafts are good: else there would be nothing to lose. Raises RuntimeError when a request
    fails or an answer's tokens are not those of plain decoding."""
    # Who is done makes room for the next, so that a turn is not a batch that runs empty.
    count = concurrent if concurrent == 1 else _WAVES * concurrent
    asked = requests(loaded, "edit", count, tokens)
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        drafter = DrafterProcess(DrafterSpec(target=spec.model, kind=DrafterKind.NGRAM))
        stack.callback(drafter.kill)
        predicting: dict[str, Predicting] = {}
        proxies: dict[str, DelayingProxy] = {}

        def remote(name: str, own: VerifierSpec) -> Contestant:
            proxy = proxies[name] = DelayingProxy(drafter.address)
            stack.callback(proxy.close)
            hello = HelloInfo(loaded.tokenizer_hash, len(loaded.tokenizer), own.model, "", name)
            port = RemoteDrafting(StaticResolver(proxy.address), hello, loop.loop)
            stack.callback(lambda: loop.do(port.aclose()))
            planner = planner_of(own.planner, own.block_length, hides=own.draft_ahead)
            predicting[name] = Predicting(planner, own.block_length, own.draft_ahead)
            engine = build_engine(loaded, own, port, NoOpTracer(), planner=predicting[name])
            return Contestant(name, engine, COUPLED)

        local = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer())
        near = remote(trip(0.0), spec)
        far = [remote(trip(steps), spec) for steps in TRIPS[1:]]
        # Neither ahead, nor meanwhile, nor while others are verified; goodput would stop drafting instead.
        fixed = replace(spec, planner=PlannerName.FIXED)
        control = remote(UNHIDDEN, replace(fixed, draft_ahead=False, gather_s=_LOCKSTEP_S))
        contestants = [
            Contestant(OFF, build_engine(loaded, spec, None, NoOpTracer()), NONE),
            Contestant(LOCAL, local, COUPLED),
            near,
            *far,
            control,
        ]
        # Once alone, for the step that all round trips are measured in.
        for _ in range(2):
            say(f"{concurrent} at a time: the verify step")
            near.take(asked, concurrent)
        measured = near.engine.measurements
        assert measured.verify is not None
        rows = max(1.0, concurrent * measured.rows_per_sequence)
        step = measured.verify.of(rows, rows * (len(asked[0].prompt_ids) + tokens / 2))
        for each, steps in zip(far, TRIPS[1:], strict=True):
            proxies[each.name].delay(steps * step)
        proxies[UNHIDDEN].delay(CONTROL * step)

        def ready() -> None:
            for each in predicting.values():
                each.forget()

        take_turns(contestants, asked, concurrent, pairs, say, ready)
    by_name = {each.name: each for each in contestants}
    return Outcome(
        concurrent,
        step,
        {each.name: each.row for each in contestants},
        {each.name: each.rates for each in contestants},
        against(by_name, trip(CONTROL), trip(0.0)),
        paired_ratio(control.rates, near.rates),
        {
            name: _seconds_a_token(by_name[name]) / each.seconds_a_token()
            for name, each in predicting.items()
            if concurrent == 1
        },
    )


def _seconds_a_token(contestant: Contestant) -> float:
    turns = contestant.turns
    return statistics.median(turn.decoding / (turn.tokens - len(turn.answers)) for turn in turns)


def as_dict(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For machines."""
    return [
        {
            "concurrent": each.concurrent,
            "verify_step_seconds": each.step,
            "contestants": each.rows,
            "tokens_per_second": each.rates,
            "hidden": _as_list(each.hidden),
            "unhidden": _as_list(each.unhidden),
            "measured_over_predicted": each.predicted,
            "verdicts": each.verdicts,
        }
        for each in outcomes
    ]


def _as_list(ratio: Ratio) -> list[float]:
    return [ratio.median, ratio.low, ratio.high]
