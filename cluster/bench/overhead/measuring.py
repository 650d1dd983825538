"""What it costs to say what was served: the same requests with nothing observed and with each kind of
observation, interleaved in one run.

Each contestant is an engine of its own over one target, and every one does the same steps: plans are fixed.
Spans go over OTLP to a collector in another process that takes and forgets them, or to an address where
nobody listens. Turns are of seconds, so that a machine whose speed drifts is as fast for both of a pair, and
in random order. Export goes on in the background, as in service; what is left of it when a turn ends, that
of half a second, is waited for, so that no turn pays for another's.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from opentelemetry.sdk import trace as sdk
from opentelemetry.trace import NoOpTracer, Tracer
from rich.console import Console
from rich.table import Table

from cluster.bench.encoding import chat
from cluster.bench.prompts import KINDS
from cluster.bench.statistics import Ratio, paired_ratio
from cluster.drafting import NgramDrafter
from cluster.speculation.law import COUPLED
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from cluster.telemetry.context import inject
from cluster.telemetry.detail import DETAIL
from cluster.telemetry.metrics import start_metrics
from cluster.telemetry.setup import setup
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine.engine import Engine
from verifier_service.spec import VerifierSpec

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Where nobody listens: the discard port of this machine.
_NOBODY = "http://127.0.0.1:9"
BARE = "nothing observed"

# Seconds that every contestant took in one repetition, by its name.
Pair = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Observing:
    """detail: of traces, empty for none; collected: whether somebody takes the spans; least: of the bare
    throughput that must be left."""

    name: str
    detail: str
    collected: bool
    least: float


OBSERVING = (
    Observing("metrics and audits, no traces", "", True, 0.97),
    Observing("metrics, audits, traces of requests", "request", True, 0.97),
    Observing("metrics, audits, traces with rounds", "round", True, 0.92),
    Observing("metrics, audits, traces of requests, collector down", "request", False, 0.97),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """throughput: over that of the bare engine, pair by pair."""

    name: str
    least: float
    throughput: Ratio

    @property
    def verdict(self) -> str:
        return self.throughput.against(self.least)


class _Contestant:
    def __init__(
        self,
        engine: Engine,
        tracer: Tracer,
        requests: Sequence[GenerationRequest],
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self._engine = engine
        self._tracer = tracer
        self._requests = requests
        self._flush = flush

    def run(self) -> tuple[int, float]:
        """Tokens and seconds of all requests at once; each in a trace of its own."""
        began = time.perf_counter()
        roots = [self._tracer.start_span("chat") for _ in self._requests]
        asked = [
            replace(request, traceparent=inject(root))
            for request, root in zip(self._requests, roots, strict=True)
        ]
        answers = answer_all(self._engine, asked)
        for root in roots:
            root.end()
        self._flush()
        return sum(len(answer.token_ids) for answer in answers), time.perf_counter() - began


class Contestants:
    """All of them over one target. collector: an OTLP endpoint that takes spans; tokens: of an answer, at
    most."""

    def __init__(self, loaded: LoadedTarget, spec: VerifierSpec, collector: str, tokens: int) -> None:
        requests = _requests(loaded, tokens)
        bare = build_engine(loaded, replace(spec, audit=False), LocalDrafting(NgramDrafter()), NoOpTracer())
        self._contestants = {BARE: _Contestant(bare, NoOpTracer(), requests)}
        for each in OBSERVING:
            self._contestants[each.name] = _observed(each, loaded, spec, collector, requests)

    def turn(self, number: int) -> Pair:
        """Each runs once; number: of the turn, from which their order follows. Raises RuntimeError if
        observing changes an answer."""
        seconds, counts = {}, set()
        # So that none always comes after the same one.
        for name in random.Random(number).sample(list(self._contestants), len(self._contestants)):
            count, seconds[name] = self._contestants[name].run()
            counts.add(count)
        if len(counts) > 1:
            raise RuntimeError(f"observation changed the number of tokens: {sorted(counts)}")
        return seconds


def costs(turns: Sequence[Pair]) -> list[Cost]:
    """What turns say. Raises ValueError without any."""
    bare = [turn[BARE] for turn in turns]
    return [
        Cost(each.name, each.least, paired_ratio(bare, [turn[each.name] for turn in turns]))
        for each in OBSERVING
    ]


def _requests(loaded: LoadedTarget, tokens: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=kind,
            prompt_ids=chat(loaded, text),
            sampling=Sampling(temperature=1.0),
            law=COUPLED,
            requested_law=COUPLED,
            seed=seed,
            max_tokens=tokens,
            domain=kind,
            seed_drawn=True,
        )
        for seed, (kind, text) in enumerate(KINDS.items())
    ]


def _observed(
    observing: Observing,
    loaded: LoadedTarget,
    spec: VerifierSpec,
    collector: str,
    requests: Sequence[GenerationRequest],
) -> _Contestant:
    settings = {DETAIL: observing.detail, _ENDPOINT: collector if observing.collected else _NOBODY}
    if not observing.detail:
        settings[_ENDPOINT] = ""
    with _environment(settings):
        tracer = setup("truedraft-verifier", replica=observing.name)
        meter = start_metrics("truedraft-verifier", observing.name).meter
        engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), tracer, meter=meter)
    if not observing.detail or not observing.collected:
        return _Contestant(engine, tracer, requests)
    processor = cast(sdk.Tracer, tracer).span_processor
    return _Contestant(engine, tracer, requests, processor.force_flush)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def render(costs: Sequence[Cost], pairs: int, console: Console) -> None:
    table = Table(title=f"Throughput with observation, over without: median [95 %] of {pairs} pairs")
    for name in ("observed", "throughput", "must be", ""):
        table.add_column(name, justify="left" if name == "observed" else "right")
    for cost in costs:
        ratio = cost.throughput
        interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        table.add_row(cost.name, interval, f"≥ {cost.least}", cost.verdict)
    console.print(table)
