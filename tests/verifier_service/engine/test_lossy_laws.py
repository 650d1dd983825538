"""Lossy laws in the engine: what they did is in the answer, and nothing stronger than it."""

from dataclasses import replace

import pytest

from cluster.checkpoints import load_model, resolve
from cluster.speculation.catalogue import parse
from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import COUPLED, REJECTION, Claim
from cluster.speculation.messages import DraftBlock
from cluster.speculation.request import FinishReason
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Mimic, Port, Rows, accounted, alone
from verifier_service import verification
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback

FEW = Sampling(temperature=1.0, top_k=5)
LENIENCE = parse("collaborative:lenience", {"lenience": 0.3})
LOSSY = [
    LENIENCE,
    parse("collaborative:interpolation", {"lambda": 0.5, "ceiling": 3.0}),
    parse("collaborative:mentored", {"max_kl": 0.2}),
    parse("collaborative:cactus", {"delta": 1.0, "ceiling": 3.0}),
    parse("truncation:min_p", {"min_p": 0.3}),
    parse("truncation:typical", {"epsilon": 0.3, "delta": 0.5}),
]


@pytest.fixture(scope="module")
def rows(tiny_path):
    return Rows(load_model(resolve(str(tiny_path)), "float32", "cpu"), FEW)


@pytest.fixture
def verdicts(monkeypatch):
    """Of every round of the engine, in order."""
    seen = []

    def recording(cases):
        decided = verification.verify_together(cases)
        seen.extend(decided)
        return decided

    monkeypatch.setattr("verifier_service.engine.deciding.verify_together", recording)
    return seen


@pytest.mark.parametrize("law", LOSSY, ids=str)
def test_the_ledger_is_of_the_tokens_of_the_answer(engine_with, request_for, rows, verdicts, law):
    request = request_for(law=law, sampling=FEW, seed=3)
    provenance = accounted(alone(engine_with(LocalDrafting(Mimic(rows))), request))
    decided = [each for verdict in verdicts for each in verdict.distortion]
    assert provenance.distortion == DistortionTotals().plus(decided)
    assert provenance.distortion.tokens == provenance.emitted_tokens == 40
    assert 0.0 < provenance.distortion.tv_mean <= provenance.distortion.tv_max <= 1.0
    assert provenance.distortion.overshoot_max <= (law.param("ceiling") or float("inf")) * (1 + 1e-12)
    assert provenance.claim is Claim.LOSSY
    assert provenance.effective_law == law


def test_the_token_that_ends_an_answer_is_accounted_for_and_what_follows_is_not(
    engine_with, request_for, rows, verdicts, monkeypatch
):
    request = request_for(law=LENIENCE, sampling=FEW, seed=3)
    truth = alone(engine_with(LocalDrafting(Mimic(rows))), request).token_ids
    # Inside a block, so that tokens after it are decided and discarded.
    at, rounds = 0, list(verdicts)
    for verdict in rounds:
        if verdict.accepted >= 2 and verdict.tokens[0] not in truth[:at]:
            break
        at += len(verdict.tokens)
    engine = engine_with(LocalDrafting(Mimic(rows)))
    monkeypatch.setattr(engine._intake._make, "_stop_ids", frozenset({truth[at]}))
    answer = alone(engine, request)
    assert answer.finished.reason is FinishReason.STOP
    assert answer.token_ids == truth[:at]
    assert answer.finished.provenance.distortion.tokens == at + 1


def test_a_budget_of_nothing_is_the_strict_law_and_may_say_so(engine_with, request_for, rows):
    nothing = parse("collaborative:lenience", {"max_distortion": 0.0})
    request = request_for(law=nothing, sampling=FEW, seed=8)
    relaxed = alone(engine_with(LocalDrafting(Mimic(rows))), request)
    strict = alone(engine_with(LocalDrafting(Mimic(rows))), replace(request, law=REJECTION))
    assert relaxed.token_ids == strict.token_ids
    provenance = relaxed.finished.provenance
    assert provenance.claim is Claim.EXACT_LAW
    assert (provenance.distortion.tv_total, provenance.distortion.overshoot_max) == (0.0, 1.0)
    assert any("nothing was relaxed" in reason for reason in provenance.reasons)


@pytest.mark.parametrize(
    ("lost", "claim"),
    [
        (None, Claim.EXACT_LAW),
        (Fallback.NO_DRAFTER, Claim.EXACT_LAW),
        (Fallback.DRAFTER_FAULT, Claim.UNPROVEN),
    ],
)
def test_without_drafts_a_collaborative_law_distorts_nothing(engine_with, request_for, lost, claim):
    def reply(ticket):
        block = None if lost else DraftBlock()
        return [DraftReply(ticket.sequence, ticket.plan_id, block, fallback=lost, asked=0)]

    provenance = accounted(alone(engine_with(Port(reply)), request_for(law=LENIENCE, max_tokens=6)))
    assert provenance.claim is claim
    assert provenance.distortion.tv_total == 0.0


def test_truncation_distorts_whoever_drafts(engine_with, request_for):
    request = request_for(law=parse("truncation:min_p", {"min_p": 0.9}), sampling=FEW, max_tokens=20)
    provenance = accounted(alone(engine_with(), request))
    assert provenance.claim is Claim.LOSSY
    assert provenance.distortion.tv_mean > 0.0


def test_strict_laws_have_no_ledger(engine_with, request_for, rows):
    for law in (COUPLED, REJECTION):
        answer = alone(engine_with(LocalDrafting(Mimic(rows))), request_for(law=law, sampling=FEW))
        assert answer.finished.provenance.distortion is None
