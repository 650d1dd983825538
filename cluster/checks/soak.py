"""The soak: mixed traffic for half an hour. Nothing fails that is not the client's fault, tokens stay those
of plain decoding, and memory stays flat.

Prompts of 1 to 2,000 tokens, every law, several tenants, answers that are cancelled and requests that are
refused, more at a time than the cache holds:

    python -m cluster.checks.soak --minutes 30
"""

from __future__ import annotations

import argparse
import itertools
import queue
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psutil
from opentelemetry.trace import NoOpTracer

from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.checks.traffic import Traffic
from cluster.drafting import NgramDrafter
from cluster.speculation.law import NONE
from cluster.speculation.request import GenerationEvent, GenerationRequest
from cluster.telemetry.metrics import start_metrics
from verifier_service.batch import Answer, answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine.engine import Engine
from verifier_service.spec import VerifierSpec

# How much memory may grow after the warm-up.
FLAT = 0.03
_WARM_UP = 1 / 3
_SAMPLE_S = 0.5
_CANCELLED, _INVALID = 0.1, 0.05

Report = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """finished: answers by law; compared: those whose tokens had to be plain decoding's; memory: resident
    bytes after the warm-up, in order; faults: what was found wrong, in words."""

    finished: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    invalid: int = 0
    compared: int = 0
    preemptions: int = 0
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Of memory, from the first quarter of what was seen to the last, by their medians."""
        quarter = max(1, len(self.memory) // 4)
        before, after = (statistics.median(part) for part in (self.memory[:quarter], self.memory[-quarter:]))
        return after / before - 1.0

    def __str__(self) -> str:
        return (
            f"{self.finished.total()} answers {dict(self.finished)}, {self.compared} compared with plain "
            f"decoding, {self.cancelled} cancelled, {self.invalid} invalid; {self.preemptions} preemptions, "
            f"tokens of prompts {self.prompt_tokens}; memory {self.memory[-1] / 1e6:.0f} MB, "
            f"{self.growth:+.2%} since the warm-up; {len(self.faults)} faults"
        )


class _Clients:
    """Those that wait for an answer. served: what was answered where it must be what plain decoding says, by
    the request without its name and its tenant."""

    def __init__(self, engine: Engine, traffic: Traffic, outcome: Outcome) -> None:
        self._engine = engine
        self._traffic = traffic
        self._outcome = outcome
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[GenerationRequest, Answer]] = {}
        self._leaving: dict[str, float] = {}
        self._over: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.served: dict[GenerationRequest, list[list[int]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self) -> None:
        """Sends a request, or what should have been one."""
        if self._traffic.chance.random() < _INVALID:
            self._outcome.invalid += 1
            if not self._traffic.invalid():
                self._outcome.faults.append("a request that cannot be served was taken")
            return
        name, answer = str(next(self._numbers)), Answer()
        request = self._traffic.request(name)
        self._waiting[name] = request, answer
        if self._traffic.chance.random() < _CANCELLED:
            self._leaving[name] = time.monotonic() + self._traffic.chance.random()

        def take(event: GenerationEvent) -> None:
            answer.take(event)
            if answer.finished is not None or answer.failure is not None:
                self._over.put(name)

        self._engine.submit(request, take)

    def settle(self) -> None:
        """Takes note of answers that are over, and leaves others."""
        now = time.monotonic()
        for name in [name for name, due in self._leaving.items() if due <= now]:
            del self._leaving[name]
            if self._waiting.pop(name, None) is not None:
                self._engine.cancel(name)
                self._outcome.cancelled += 1
        try:
            name = self._over.get(timeout=0.05)
        except queue.Empty:
            return
        if name in self._waiting:
            self._judge(*self._waiting.pop(name))

    def _judge(self, request: GenerationRequest, answer: Answer) -> None:
        if answer.finished is None:
            self._outcome.faults.append(f"request {request.request_id} failed: {answer.failure}")
            return
        provenance = answer.finished.provenance
        self._outcome.finished[request.law.name] += 1
        if not provenance.claim.lossless and request.law.name in ("none", "coupled", "rejection", "block"):
            self._outcome.faults.append(
                f"request {request.request_id} under {request.law} claims {provenance.claim.label}"
            )
        if request.law.name in ("none", "coupled"):
            plain = replace(request, request_id="", tenant="", law=NONE, requested_law=NONE)
            self.served.setdefault(plain, []).append(answer.token_ids)


def soak(
    loaded: LoadedTarget,
    spec: VerifierSpec,
    seconds: float,
    longest: int = 2000,
    answers: int = 64,
    concurrent: int = 48,
    report: Report = lambda line: None,
) -> Outcome:
    """Serves for `seconds`. longest, answers: tokens of prompts and of what follows, at most."""
    traffic, outcome = Traffic(loaded, longest, answers, seed=1), Outcome()
    meter = start_metrics("soak").meter
    engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer(), meter=meter)
    clients = _Clients(engine, traffic, outcome)
    thread = threading.Thread(target=engine.run, name="engine")
    thread.start()
    try:
        _serve(engine, clients, outcome, seconds, concurrent, report)
    finally:
        engine.stop()
        thread.join()
    if held := engine.load().kv_tokens:
        outcome.faults.append(f"{held} tokens of cache are still held")
    if outcome.growth >= FLAT:
        outcome.faults.append(f"memory grew by {outcome.growth:.2%} after the warm-up")
    _compare(loaded, spec, clients.served, outcome)
    return outcome


def _serve(
    engine: Engine, clients: _Clients, outcome: Outcome, seconds: float, concurrent: int, report: Report
) -> None:
    process, began = psutil.Process(), time.monotonic()
    sample = _WARM_UP * seconds
    while len(clients) or time.monotonic() < began + seconds:
        passed = time.monotonic() - began
        while len(clients) < concurrent and passed < seconds:
            clients.ask()
        clients.settle()
        if sample <= passed < seconds:
            sample = passed + _SAMPLE_S
            outcome.memory.append(process.memory_info().rss)
            counted = engine.counted()
            outcome.preemptions, outcome.prompt_tokens = counted["preemptions"], counted["prompt_tokens"]
            if len(outcome.memory) % 120 == 0:
                report(f"{passed:.0f} s: {outcome}")


def _compare(
    loaded: LoadedTarget,
    spec: VerifierSpec,
    served: dict[GenerationRequest, list[list[int]]],
    outcome: Outcome,
) -> None:
    """Every answer with that of an engine that has nothing else to do, drafts nothing and knows no page."""
    for request, answers in served.items():
        [truth] = answer_all(build_engine(loaded, spec, None, NoOpTracer()), [request])
        for tokens in answers:
            outcome.compared += 1
            if tokens != truth.token_ids:
                outcome.faults.append(f"an answer with seed {request.seed} is not that of plain decoding")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a fault was found, 0 if none was."""
    parser = argparse.ArgumentParser(description="Mixed traffic for a long time.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", default=DEFAULT_REFERENCE)
    options = parser.parse_args(arguments)
    # Two of the longest, so that pages are evicted and requests wait for room.
    spec = VerifierSpec(model=options.model, kv_tokens=4096, max_active=24)

    def report(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    outcome = soak(load_target(spec), spec, 60 * options.minutes, report=report)
    report("\n".join([str(outcome), *(f"FAULT {each}" for each in outcome.faults)]))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
