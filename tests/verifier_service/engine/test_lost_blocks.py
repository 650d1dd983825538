"""Blocks under rejection and block that come late, broken or never: who waits, and what the claim says."""

import threading

import pytest
import torch

from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim
from cluster.speculation.messages import DraftBlock, SparseRows
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Mimic, Port, accounted, alone
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback

LAWS = [REJECTION, BLOCK]
FEW = Sampling(temperature=1.0, top_k=3)
HONEST = SparseRows(torch.tensor([[5, 9]]), torch.tensor([[0.5, 0.5]]))
BAD_PROPOSALS = {
    "no probability for its token": DraftBlock((4,), (1.0,), proposal=HONEST),
    "of another length": DraftBlock((5, 9), (0.5, 0.5), proposal=HONEST),
    "not a number": DraftBlock(
        (5,), (0.5,), proposal=SparseRows(HONEST.ids, torch.tensor([[0.5, float("nan")]]))
    ),
    "beyond the vocabulary": DraftBlock((5,), (0.5,), proposal=SparseRows(HONEST.ids + 507, HONEST.probs)),
    "an id twice": DraftBlock((5,), (0.5,), proposal=SparseRows(HONEST.ids * 0 + 5, HONEST.probs)),
    "a tree": DraftBlock((5, 9), (1.0, 1.0), parents=(-1, -1)),
}


@pytest.mark.parametrize("fault", BAD_PROPOSALS)
def test_a_proposal_that_cannot_be_verified_costs_its_round_and_its_proof(engine_with, request_for, fault):
    def reply(ticket):
        return [DraftReply(ticket.sequence, ticket.plan_id, BAD_PROPOSALS[fault])]

    provenance = accounted(alone(engine_with(Port(reply)), request_for(law=REJECTION, max_tokens=5)))
    assert provenance.fallbacks == {"invalid-block": 3}
    assert provenance.claim is Claim.UNPROVEN
    assert not provenance.claim.lossless


@pytest.mark.parametrize("certain", [False, True], ids=["drawn", "certain"])
@pytest.mark.parametrize("fallback", Fallback)
@pytest.mark.parametrize("law", [NONE, COUPLED, *LAWS], ids=str)
def test_the_claim_follows_from_how_a_block_was_lost(engine_with, request_for, law, fallback, certain):
    rounds = iter([fallback, None, None])

    def reply(ticket):
        lost = next(rounds, None)
        block = None if lost else DraftBlock()
        return [DraftReply(ticket.sequence, ticket.plan_id, block, fallback=lost, asked=0, certain=certain)]

    provenance = accounted(alone(engine_with(Port(reply)), request_for(law=law, max_tokens=5)))
    if law in (NONE, COUPLED):
        assert provenance.claim is Claim.IDENTICAL_TOKENS
        return
    assert provenance.fallbacks == {str(fallback): 1}
    blind = certain or fallback is Fallback.NO_DRAFTER
    assert provenance.claim is (Claim.EXACT_LAW if blind else Claim.UNPROVEN)
    assert any("1 of 5 rounds lost their block" in reason for reason in provenance.reasons) is not blind


@pytest.mark.parametrize("fallback", [None, *Fallback])
def test_an_outage_teaches_other_requests_nothing(engine_with, request_for, fallback):
    """A drafter that says it has nothing does."""

    def reply(ticket):
        block = DraftBlock() if fallback is None else None
        return [DraftReply(ticket.sequence, ticket.plan_id, block, fallback=fallback)]

    engine = engine_with(Port(reply))
    alone(engine, request_for(law=COUPLED, max_tokens=5))
    experience = engine.measurements.experience("", "drafters")
    assert (experience.asked, experience.given) == ((0.0 if fallback else 3.0), 0.0)


@pytest.mark.parametrize("law", [COUPLED, *LAWS], ids=str)
def test_a_late_block_is_waited_for_where_dropping_it_would_matter(engine_with, request_for, law):
    """Its sequence waits, and another, without drafts, is served meanwhile."""
    request = request_for("one two three", law=law, max_tokens=4, request_id="waiting")
    tickets, order = [], []
    port = Port(lambda ticket: tickets.append(ticket) or [])
    engine = engine_with(port, draft_deadline_s=0.01)
    waiting, other = [], []
    engine.submit(request, lambda event: (waiting.append(event), order.append("waiting")))
    while not tickets:
        engine.step()
    seen = len(waiting)
    engine.submit(request_for("a", law=NONE), lambda event: (other.append(event), order.append("other")))
    for _ in range(10):
        engine.step()
    assert len(other) >= 8
    if law == COUPLED:
        assert len(waiting) > seen
        return
    assert len(waiting) == seen
    ticket = tickets[0]
    port.deliver(DraftReply(ticket.sequence, ticket.plan_id, DraftBlock()))
    engine.step()
    assert len(waiting) > seen


class Delaying(LocalDrafting):
    """Gives each block on after a while that depends on what was drafted, from a thread of its own."""

    def connect(self, deliver):
        def later(reply):
            seconds = 0.03 if reply.block.tokens[0] % 2 else 0.0
            threading.Timer(seconds, deliver, [reply]).start()

        super().connect(later)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_delays_that_depend_on_what_was_drafted_change_no_token(engine_with, request_for, rows, law):
    requests = [
        request_for("one two three", law=law, sampling=FEW, max_tokens=12, seed=seed, request_id=str(seed))
        for seed in range(12)
    ]
    fields = {"draft_deadline_s": 0.01, "max_active": 16, "step_rows": 48}
    prompt = answer_all(engine_with(LocalDrafting(Mimic(rows)), **fields), requests)
    late = answer_all(engine_with(Delaying(Mimic(rows)), **fields), requests)
    assert [answer.token_ids for answer in late] == [answer.token_ids for answer in prompt]
    assert {answer.finished.provenance.claim for answer in late} == {Claim.EXACT_LAW}
    assert sum(answer.finished.provenance.draft_tokens for answer in late) > 100


def test_patience_ends_with_an_answer_that_proves_nothing(engine_with, request_for):
    engine = engine_with(Port(lambda ticket: []), draft_deadline_s=30.0, draft_patience_s=0.01)
    provenance = accounted(alone(engine, request_for(law=REJECTION, max_tokens=5)))
    assert provenance.fallbacks == {"deadline": 3}
    assert provenance.claim is Claim.UNPROVEN


def test_a_block_under_a_law_that_must_not_be_cut_is_one_for_which_every_step_has_room(
    engine_with, request_for
):
    lengths = {}
    for law in (COUPLED, REJECTION):
        asked = lengths.setdefault(law, [])
        port = Port(lambda ticket, asked=asked: asked.append(ticket.length) or [])
        engine = engine_with(port, max_active=4, step_rows=16, draft_deadline_s=0.01, draft_patience_s=0.01)
        alone(engine, request_for(law=law, max_tokens=9))
    assert max(lengths[COUPLED]) == 7
    assert max(lengths[REJECTION]) == 3
