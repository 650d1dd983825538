"""From the logits of a step to what it decided for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from cluster.speculation.provenance import Numerics
from cluster.speculation.request import TokenLogprob
from cluster.speculation.sampling import target_probs_together
from verifier_service.audit.auditor import Auditor
from verifier_service.requests.grammar import GrammarError
from verifier_service.requests.logprobs import logprobs_of
from verifier_service.requests.replaying import Replaying
from verifier_service.requests.sequence import Sequence
from verifier_service.target.uncertainty import uncertain
from verifier_service.verification import verify, verify_together


@dataclass(frozen=True, slots=True)
class Decided:
    """A round's tokens. doubts: for each whether another batch could have changed it; logprobs: of each.
    Either is empty where it is not asked."""

    sequence: Sequence
    verdict: Verdict
    doubts: tuple[bool, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Faulted:
    """A sequence whose rows could not be decided, and why; it fails by itself. sound: its keys and values may
    be used again; asked: the request itself leaves nothing to decide."""

    sequence: Sequence
    detail: str
    sound: bool = True
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """An answer that was decoded again is through."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class _Case:
    sequence: Sequence
    raw: Tensor
    controlled: Tensor
    law: Law
    probs: Tensor
    block: DraftBlock
    noise: Noise

    @property
    def asked(self) -> tuple[Law, Tensor, DraftBlock, Noise]:
        return self.law, self.probs, self.block, self.noise


class Decisions:
    """The engine's thread alone."""

    def __init__(self, numerics: Numerics, auditor: Auditor | None, replaying: Replaying | None) -> None:
        self._error = numerics.logit_discrepancy
        self._auditor = auditor
        self._replaying = replaying

    def decide(self, step: list[tuple[Sequence, Tensor]]) -> list[Decided | Faulted | Compared]:
        """step: sequences with the logits of their last token and their drafts, [N+1, V]."""
        outcomes: list[Decided | Faulted | Compared] = []
        controlled: list[tuple[Sequence, Tensor, Tensor]] = []
        for sequence, logits in step:
            rows = _controlled(sequence, logits)
            if isinstance(rows, Faulted):
                outcomes.append(rows)
            else:
                controlled.append((sequence, logits, rows))
        asked = [(rows, sequence.request.sampling) for sequence, _, rows in controlled]
        cases = [
            _Case(
                sequence,
                logits,
                rows,
                sequence.request.law,
                probs,
                sequence.block,
                Noise(sequence.request.seed, len(sequence.tokens)),
            )
            for (sequence, logits, rows), probs in zip(controlled, target_probs_together(asked), strict=True)
        ]
        try:
            verdicts: list[Verdict | Faulted] = [*verify_together([case.asked for case in cases])]
        except ValueError:
            verdicts = [_alone(case) for case in cases]
        for case, verdict in zip(cases, verdicts, strict=True):
            outcome = verdict if isinstance(verdict, Faulted) else self._outcome(case, verdict)
            if outcome is not None:
                outcomes.append(outcome)
        return outcomes

    def _outcome(self, case: _Case, verdict: Verdict) -> Decided | Compared | None:
        sequence, request = case.sequence, case.sequence.request
        if sequence.replay is not None and self._replaying is not None:
            over = self._replaying.compare(sequence, verdict.tokens[0], case.controlled[0], case.probs[0])
            return Compared(sequence) if over else None
        if self._auditor is not None and sequence.subject is not None:
            seen = (case.probs, case.block, verdict, case.noise)
            self._auditor.round(request, sequence.subject, sequence.drafter, *seen)
        doubts: tuple[bool, ...] = ()
        if self._error and not LAWS[case.law.name].sends_rows:
            rows = [0, *(draft + 1 for draft in verdict.path)] if verdict.path is not None else slice(None)
            doubts = uncertain(
                case.controlled[rows],
                case.probs[rows],
                request.sampling,
                case.noise,
                verdict.tokens,
                self._error,
            )
        told = () if request.logprobs is None else logprobs_of(case.raw, verdict, request.logprobs)
        return Decided(sequence, verdict, doubts, told)


def _controlled(sequence: Sequence, logits: Tensor) -> Tensor | Faulted:
    """The rows as the request's controls leave them."""
    if not _has_maxima(logits):
        return Faulted(sequence, "the model's logits are no distribution: they are not finite", sound=False)
    try:
        controlled = sequence.controller.apply(logits, sequence.block)
    except GrammarError as error:
        # One that is too large to follow shows it only on the way.
        return Faulted(sequence, f"the grammar cannot be followed: {error}", asked=True)
    if controlled is not logits and not _has_maxima(controlled):
        return Faulted(sequence, "the request's parameters forbid every token", asked=True)
    return controlled


def _has_maxima(logits: Tensor) -> bool:
    # The largest of a row is NaN if any is; single tokens may well be at minus infinity.
    return bool(logits.amax(dim=-1).isfinite().all())


def _alone(case: _Case) -> Verdict | Faulted:
    try:
        return verify(*case.asked)
    except ValueError as error:
        return Faulted(case.sequence, f"the block could not be verified: {error}")
