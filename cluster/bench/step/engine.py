"""What a step of the real engine costs besides its forward and its verdicts."""

from __future__ import annotations

import cProfile
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from opentelemetry.trace import NoOpTracer

from cluster.bench.step.parts import in_functions
from cluster.drafting.drafter import DraftJob
from cluster.drafting.features import FeaturesInfo
from cluster.scheduling import PlannerName
from cluster.speculation.law import NONE, Law
from cluster.speculation.messages import DraftBlock, SessionSpec
from cluster.speculation.proposal import SparseRow, pack
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling, target_probs
from verifier_service.audit.auditor import Auditor
from verifier_service.batch import answer_all
from verifier_service.build import LoadedTarget, build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine.engine import Engine
from verifier_service.spec import VerifierSpec
from verifier_service.target.target import TargetModel
from verifier_service.verification import verify_together

_ROUNDS = 4
_PROMPT = 16


@dataclass(frozen=True, slots=True)
class Around:
    """Seconds of a step, medians, as a profiler counts them, which slows Python down. audit: evidence for
    live tests of the law; bookkeeping: all else: composing the batch, committing, text, events, planning."""

    audit: float
    bookkeeping: float


class _Known:
    """Drafts what plain decoding said, with proposals that are nearly certain of it."""

    model, revision, kind = "known", "", "known"
    context, certain, longest = 0, False, 0
    features: FeaturesInfo | None = None

    def __init__(self, answers: dict[tuple[int, ...], list[int]], vocab_size: int) -> None:
        self._answers = answers
        self._vocab_size = vocab_size
        self._sessions: dict[int, tuple[list[int], SessionSpec]] = {}

    def open(self, spec: SessionSpec) -> None:
        self._sessions[spec.sequence] = (list(spec.prompt_ids), spec)

    def draft(self, jobs: Sequence[DraftJob]) -> list[DraftBlock]:
        return [self._draft(job) for job in jobs]

    def _draft(self, job: DraftJob) -> DraftBlock:
        text, spec = self._sessions[job.sequence]
        text.extend(job.committed)
        answer = self._answers[spec.prompt_ids]
        begun = len(text) - len(spec.prompt_ids)
        tokens = tuple(answer[begun : begun + job.length])
        entries = spec.proposal_entries
        rows = [
            SparseRow(
                tuple((token + k) % self._vocab_size for k in range(entries)), (0.85, *[0.01] * (entries - 1))
            )
            for token in tokens
            if entries
        ]
        return DraftBlock(tokens, (0.85,) * len(tokens), proposal=pack(rows) if rows else None)

    def close(self, sequence: int) -> None:
        self._sessions.pop(sequence, None)


def around(loaded: LoadedTarget, laws: Sequence[Law], texts: Sequence[list[int]], rows: int) -> list[Around]:
    """For each law, steps of `sequences` short prompts, each with rows - 1 drafts."""
    spec = VerifierSpec(
        model="",
        max_active=len(texts),
        planner=PlannerName.FIXED,
        block_length=rows - 1,
        step_rows=len(texts) * max(rows, _PROMPT),
        # Answers that are decoded again would be in the way.
        replay_share=0.0,
    )
    endless = replace(loaded, stop_ids=frozenset())
    requests = [_request(i, text[:_PROMPT], 1 + _ROUNDS * rows) for i, text in enumerate(texts)]
    answers = answer_all(build_engine(endless, spec, None, NoOpTracer()), requests)
    known = {request.prompt_ids: answer.token_ids for request, answer in zip(requests, answers, strict=True)}
    found = []
    for law in laws:
        port = LocalDrafting(_Known(known, loaded.model.vocab_size))
        engine = build_engine(endless, spec, port, NoOpTracer())
        for request in requests:
            engine.submit(replace(request, law=law, requested_law=law), lambda event: None)
        # Prompts, and the first token of each.
        engine.step()
        found.append(_around(engine))
    return found


_ELSEWHERE: dict[str, Callable[..., object]] = {
    "forward": TargetModel.forward,
    "transforms": target_probs,
    "verification": verify_together,
    "drafting": LocalDrafting.request,
    "audit": Auditor.round,
}


def _around(engine: Engine) -> Around:
    audits, rest = [], []
    for _ in range(_ROUNDS - 1):
        profile = cProfile.Profile()
        profile.runcall(engine.step)
        whole = in_functions(profile, {"step": Engine.step})["step"]
        parts = in_functions(profile, _ELSEWHERE)
        audits.append(parts["audit"])
        rest.append(whole - sum(parts.values()))
    return Around(statistics.median(audits), statistics.median(rest))


def _request(number: int, prompt: list[int], tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=str(number),
        prompt_ids=tuple(prompt),
        sampling=Sampling(),
        law=NONE,
        requested_law=NONE,
        seed=number,
        # Else there would be no audit of it.
        seed_drawn=True,
        max_tokens=tokens,
    )
