"""The live audit of one verifier replica: evidence of its rounds and replays, by law, drafter and domain."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from opentelemetry.trace import Tracer
from torch import Tensor

from cluster.speculation.audit import ALARM, AuditState
from cluster.speculation.catalogue import LAWS
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise, Purpose
from cluster.speculation.request import GenerationRequest
from cluster.telemetry import names
from cluster.telemetry.audit import audit_span
from cluster.telemetry.labels import Domains
from verifier_service.audit.betting import DECISIONS, RANKS, Decision, Martingale
from verifier_service.audit.evidence import Evidence, evidence
from verifier_service.audit.replay import Replayed, Replays
from verifier_service.audit.subject import Subject

log = logging.getLogger(__name__)

T = TypeVar("T")

# Before any drafter has answered.
_NO_DRAFTER = "none"


@dataclass(slots=True)
class _Account:
    ranks: Martingale[float] = field(default_factory=lambda: Martingale(RANKS))
    drawn: Martingale[float] = field(default_factory=lambda: Martingale(RANKS))
    kept: Martingale[Decision] = field(default_factory=lambda: Martingale(DECISIONS))
    replays: int = 0
    replayed_tokens: int = 0
    near_ties: int = 0
    faults: int = 0


class Auditor:
    """The engine's thread alone, but for `states`. replay_share: of finished answers that are decoded again;
    domains: labels that are kept apart."""

    def __init__(self, tracer: Tracer, domains: Domains, replay_share: float) -> None:
        self._tracer = tracer
        self._domains = domains
        self.replays = Replays(replay_share)
        self._accounts: dict[Subject, _Account] = {}
        self._drafter = _NO_DRAFTER

    def subject(self, request: GenerationRequest) -> Subject:
        """What a new request's evidence is kept under.

        Its drafter is the last that answered any request before. Under `coupled`, whether a block of its own
        comes may depend on the noise that decides its tokens, so that it must not choose the account.
        """
        drafter = _NO_DRAFTER if request.law.name == "none" else self._drafter
        return Subject(request.law.name, drafter, self._domains.label(request.domain))

    def round(
        self,
        request: GenerationRequest,
        subject: Subject,
        drafter: str,
        target_probs: Tensor,
        block: DraftBlock,
        verdict: Verdict,
        noise: Noise,
    ) -> None:
        """Takes the evidence of a round. drafter: the model that made the block, empty without one.

        A seed that the client chose may have been used before, and the same seed gives the same noise: only
        requests whose seed was drawn for them count.
        """
        self._drafter = drafter or self._drafter
        law = LAWS[request.law.name]
        if not request.seed_drawn or not law.lossless:
            return
        if law.sends_rows and drafter:
            # Who was asked was known before anything was drafted.
            subject = replace(subject, drafter=drafter)
        looked_at = len(verdict.tokens) + (len(block.tokens) if law.sends_rows else 0)
        uniforms = [noise.uniform(Purpose.AUDIT, k) for k in range(looked_at)]
        found = evidence(request.law, target_probs, block, verdict, uniforms)
        if found == Evidence():
            return
        account = self._account(subject)
        self._bet(names.AUDIT_RANKS, account.ranks, found.ranks, request, subject)
        if law.sends_rows:
            self._bet(names.AUDIT_DRAWN, account.drawn, found.drawn, request, subject)
            self._bet(names.AUDIT_KEPT, account.kept, found.kept, request, subject)

    def _account(self, subject: Subject) -> _Account:
        # Not by setdefault, which would make one in every round.
        account = self._accounts.get(subject)
        if account is None:
            account = self._accounts[subject] = _Account()
        return account

    def _bet(
        self,
        kind: str,
        martingale: Martingale[T],
        values: tuple[T, ...],
        request: GenerationRequest,
        subject: Subject,
    ) -> None:
        before = martingale.log_p_value
        martingale.observe(values)
        if before >= _LOG_ALARM > martingale.log_p_value:
            log.error(
                "audit: under %s with drafter %s, domain %s, %s do not fit the law: p < %g after %d",
                subject.law,
                subject.drafter,
                subject.domain,
                _WHAT[kind],
                ALARM,
                martingale.count,
                extra=_trace_of(request),
            )
            facts = {names.AUDIT_P_VALUE: martingale.p_value, names.AUDIT_TOKENS: martingale.count}
            self._span(kind, names.AUDIT_ALARM, request, subject, facts)

    def replayed(self, result: Replayed) -> None:
        """Takes the outcome of a replay."""
        account = self._account(result.subject)
        account.replays += 1
        account.replayed_tokens += result.tokens
        facts: dict[str, str | int | float] = {names.AUDIT_TOKENS: result.tokens}
        outcome, difference = names.AUDIT_EQUAL, result.difference
        if difference is not None:
            outcome = names.AUDIT_NEAR_TIE if difference.near_tie else names.AUDIT_FAULT
            account.near_ties += difference.near_tie
            account.faults += not difference.near_tie
            facts[names.AUDIT_POSITION] = difference.index
            if math.isfinite(difference.margin):
                facts[names.AUDIT_MARGIN] = difference.margin
            if not difference.near_tie:
                log.error(
                    "audit: request %s, decoded again, has another token at %d, by a margin of %g",
                    result.request.request_id,
                    difference.index,
                    difference.margin,
                    extra=_trace_of(result.request),
                )
        self._span(names.AUDIT_REPLAY, outcome, result.request, result.subject, facts)

    def _span(
        self,
        kind: str,
        outcome: str,
        request: GenerationRequest,
        subject: Subject,
        facts: Mapping[str, str | int | float],
    ) -> None:
        about: dict[str, str | int | float] = {
            names.AUDIT_KIND: kind,
            names.AUDIT_OUTCOME: outcome,
            names.VERIFICATION_MODE: subject.law,
            names.DRAFTER_MODEL: subject.drafter,
            names.DOMAIN: subject.domain,
        }
        audit_span(self._tracer, request.traceparent, {**about, **facts})

    def states(self) -> tuple[AuditState, ...]:
        """What is known so far; from any thread."""
        # Copied at once: the engine may add an account meanwhile.
        return tuple(
            AuditState(
                law=subject.law,
                drafter=subject.drafter,
                domain=subject.domain,
                ranks=account.ranks.count,
                ranks_p_value=account.ranks.p_value,
                drawn=account.drawn.count,
                drawn_p_value=account.drawn.p_value,
                kept=account.kept.count,
                kept_p_value=account.kept.p_value,
                replays=account.replays,
                replayed_tokens=account.replayed_tokens,
                near_ties=account.near_ties,
                faults=account.faults,
            )
            for subject, account in list(self._accounts.items())
        )


def _trace_of(request: GenerationRequest) -> dict[str, str]:
    """For a line of the log."""
    return {"trace_id": request.trace_id}


_LOG_ALARM = math.log(ALARM)
_WHAT = {
    names.AUDIT_RANKS: "the ranks of tokens",
    names.AUDIT_DRAWN: "the ranks of drafts in their rows",
    names.AUDIT_KEPT: "counts of kept drafts",
}
