"""The long fault check: whatever happens to drafters, no answer fails and none claims more than it can.

Concurrent requests over a relay that delays, repeats, spoils and loses blocks, while the drafters are killed
one after the other. Under `coupled` every answer is, token for token, that of plain decoding; under
`rejection` every answer that lost a block for what was in it is `unproven`:

    python -m cluster.checks.chaos --minutes 3
"""

from __future__ import annotations

import argparse
import itertools
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opentelemetry.trace import NoOpTracer

from cluster.bench.prompts import SHORT
from cluster.bench.rig import DrafterProcess, Loop
from cluster.checkpoints.tiny import build_tiny
from cluster.checks.meddling import KINDS, Meddler
from cluster.scheduling import FixedPlanner, History
from cluster.speculation.law import COUPLED, NONE, REJECTION, Claim, Law
from cluster.speculation.messages import BlockPlan
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.batch import Answer, answer_all
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.port import Fallback
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.resolver import StaticResolver
from verifier_service.engine.engine import Engine
from verifier_service.spec import VerifierSpec

_TOKENS = 48
_BLOCK = 3
# A machine that is slow to start drafters is given so many times as long to show every kind of fault.
_LONGER = 10
# How long a block is waited for, where its loss cannot matter and where it can.
_DEADLINE_S, _PATIENCE_S = 0.25, 0.8


@dataclass(slots=True)
class Outcome:
    """faults: what was found wrong, in words; lost: rounds without their block, by reason; meanwhile: rounds
    while it was under way."""

    law: Law
    answers: int = 0
    kills: int = 0
    meddled: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    meanwhile: int = 0
    claims: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.law}: {self.answers} answers, {len(self.faults)} faults; {self.kills} drafters killed, "
            f"blocks {dict(self.meddled)}, rounds without theirs {dict(self.lost)}, "
            f"{self.meanwhile} rounds while they were under way, "
            f"claims {dict(self.claims)}"
        )


def requests(loaded: LoadedTarget, law: Law) -> list[GenerationRequest]:
    """Every text at two temperatures, with several seeds."""
    return [
        GenerationRequest(
            request_id="",
            prompt_ids=tuple(loaded.tokenizer(text)["input_ids"]),
            sampling=Sampling(temperature=temperature),
            law=law,
            requested_law=law,
            seed=seed,
            max_tokens=_TOKENS,
        )
        for text, temperature, seed in itertools.product(SHORT, (0.0, 1.0), range(4))
    ]


class _Restless(FixedPlanner):
    """Has sequences that may decode on do so, now more and now less, whatever it promises."""

    def plan(self, history: History) -> BlockPlan:
        plan = super().plan(history)
        return replace(plan, meanwhile=history.committed % _BLOCK if not history.waits and plan.length else 0)


class _Drafters:
    """Two processes, of which one after the other is killed and replaced."""

    def __init__(self, spec: DrafterSpec) -> None:
        self._spec = spec
        self._alive = [DrafterProcess(spec), DrafterProcess(spec)]
        self.kills = 0

    def address(self) -> str | None:
        ready = [each for each in self._alive if each.ready]
        return ready[0].address if ready else None

    def kill_one(self) -> None:
        victim = next((each for each in self._alive if each.ready), None)
        if victim is not None:
            self._alive.remove(victim)
            victim.kill()
            self.kills += 1
            self._alive.append(DrafterProcess(self._spec))

    def close(self) -> None:
        for each in self._alive:
            each.kill()


def disturb(
    loaded: LoadedTarget,
    spec: VerifierSpec,
    law: Law,
    seconds: float,
    kill_every: float,
    concurrent: int = 16,
) -> Outcome:
    """Serves under faults for `seconds`, and longer where not every kind of them has been by then."""
    outcome = Outcome(law)
    spec = replace(
        spec,
        block_length=_BLOCK,
        draft_deadline_s=_DEADLINE_S,
        draft_patience_s=_PATIENCE_S,
    )
    plain = build_engine(loaded, spec, None, NoOpTracer())
    asked = requests(loaded, law)
    truths = [a.token_ids for a in answer_all(plain, [replace(each, law=NONE) for each in asked])]
    model = loaded.checkpoint.reference
    drafters = _Drafters(DrafterSpec(target=model, kind=DrafterKind.CAUSAL_LM, model=model, threads=1))
    loop = Loop()
    meddler = Meddler(drafters.address, seed=1)
    try:
        hello = HelloInfo(loaded.tokenizer_hash, len(loaded.tokenizer), "target", "", "chaos")
        remote = RemoteDrafting(StaticResolver(loop.do(meddler.start())), hello, loop.loop)
        engine = build_engine(loaded, spec, remote, NoOpTracer(), planner=_Restless(_BLOCK, hides=True))
        thread = threading.Thread(target=engine.run, name="engine")
        thread.start()
        try:
            while drafters.address() is None or remote.state != "connected":
                time.sleep(0.05)
            _serve(engine, asked, truths, outcome, drafters, meddler, seconds, kill_every, concurrent)
        finally:
            engine.stop()
            thread.join()
            loop.do(remote.aclose())
            loop.do(meddler.stop())
    finally:
        loop.close()
        drafters.close()
    outcome.kills, outcome.meddled = drafters.kills, meddler.done
    return outcome


def _serve(
    engine: Engine,
    asked: Sequence[GenerationRequest],
    truths: Sequence[Sequence[int]],
    outcome: Outcome,
    drafters: _Drafters,
    meddler: Meddler,
    seconds: float,
    kill_every: float,
    concurrent: int,
) -> None:
    finished: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
    began = time.monotonic()
    next_kill, numbers, active = began + kill_every, itertools.count(1), 0

    def goes_on() -> bool:
        limit = seconds if meddler.done.keys() >= KINDS else _LONGER * seconds
        return time.monotonic() < began + limit

    while active or goes_on():
        while active < concurrent and goes_on():
            _submit(engine, asked, next(numbers), finished)
            active += 1
        if time.monotonic() >= next_kill:
            drafters.kill_one()
            next_kill += kill_every
        try:
            number, answer = finished.get(timeout=0.1)
        except queue.Empty:
            continue
        active -= 1
        _judge(outcome, number, answer, truths[number % len(truths)], number in meddler.lost)


def _submit(
    engine: Engine,
    asked: Sequence[GenerationRequest],
    number: int,
    finished: queue.SimpleQueue[tuple[int, Answer]],
) -> None:
    """The engine numbers its sequences as they are submitted: this one's is `number`."""
    answer = Answer()

    def take(event: object) -> None:
        answer.take(event)  # type: ignore[arg-type] # every event of an engine
        if answer.finished is not None or answer.failure is not None:
            finished.put((number, answer))

    engine.submit(replace(asked[number % len(asked)], request_id=str(number)), take)


def _judge(outcome: Outcome, number: int, answer: Answer, truth: Sequence[int], lost: bool) -> None:
    outcome.answers += 1
    if answer.finished is None:
        outcome.faults.append(f"request {number} failed: {answer.failure}")
        return
    provenance = answer.finished.provenance
    outcome.lost.update(provenance.fallbacks)
    outcome.meanwhile += provenance.meanwhile_rounds
    outcome.claims[provenance.claim.label] += 1
    if outcome.law == COUPLED and answer.token_ids != list(truth):
        outcome.faults.append(f"request {number} differs from plain decoding")
    # A block that was lost for its content may also have been under way when its drafter was killed.
    reset = provenance.fallbacks.get(str(Fallback.STREAM_RESET), 0)
    if outcome.law == REJECTION and lost and not reset and provenance.claim is not Claim.UNPROVEN:
        outcome.faults.append(
            f"request {number} lost a block for what was in it and claims {provenance.claim.label}"
        )
    # One that decoded on may be through before the deadline of a block that never comes.
    if lost and not provenance.fallbacks and not provenance.meanwhile_rounds:
        outcome.faults.append(f"request {number} lost a block and does not say so")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a fault was found, 0 if none was."""
    parser = argparse.ArgumentParser(description="Faults of drafters, for minutes.")
    parser.add_argument("--minutes", type=float, default=3.0, help="for each law")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between kills of a drafter")
    options = parser.parse_args(arguments)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        spec = VerifierSpec(model=str(build_tiny(Path(directory) / "tiny", seed=1)), threads=1)
        loaded = load_target(spec)
        for law in (COUPLED, REJECTION):
            outcome = disturb(loaded, spec, law, 60 * options.minutes, options.kill_every)
            sys.stdout.write(f"{outcome}\n" + "".join(f"FAULT {each}\n" for each in outcome.faults))
            found += outcome.faults
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
