"""Rejection and block served by the engine: the target's distribution, whatever happens to the blocks,
or a claim that says otherwise."""

import threading
from collections import Counter

import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.drafting import NgramDrafter
from cluster.scheduling import Budget, FixedPlanner, PlannerName
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim
from cluster.speculation.messages import DraftBlock, SparseRows
from cluster.speculation.noise import Purpose, derive_key
from cluster.speculation.proposal import SparseRow
from cluster.speculation.sampling import Sampling
from tests.speculation.helpers import ALPHA, p_value
from tests.verifier_service.helpers import Mimic, Port, Rows, Scripted, accounted, alone
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback

LAWS = [REJECTION, BLOCK]
FEW = Sampling(temperature=1.0, top_k=3)
SEEDS = 1500


@pytest.fixture(scope="module")
def rows(tiny_path):
    return Rows(load_model(resolve(str(tiny_path)), "float32", "cpu"), FEW)


@pytest.fixture(scope="module")
def reference(rows, loaded):
    """Every continuation of three tokens, with its probability."""
    prompt = loaded.tokenizer("one two three")["input_ids"]

    def branches(text):
        row = rows(text)
        return [(token, float(row[token])) for token in row.nonzero()[:, 0].tolist()]

    law = Counter()
    for first, p in branches(prompt):
        for second, q in branches([*prompt, first]):
            for third, r in branches([*prompt, first, second]):
                law[first, second, third] += p * q * r
    return law


def continuations(engine, request_for, law):
    """The first tokens of as many answers, and the claims made for them."""
    requests = [
        request_for("one two three", law=law, sampling=FEW, max_tokens=4, seed=seed, request_id=str(seed))
        for seed in range(SEEDS)
    ]
    answers = answer_all(engine, requests)
    claims = {answer.finished.provenance.claim for answer in answers}
    return [tuple(answer.token_ids[:3]) for answer in answers], claims, answers


def fits(outcomes, law):
    cells = {cell: index for index, cell in enumerate(law)}
    assert set(outcomes) <= set(cells)
    return p_value([cells[outcome] for outcome in outcomes], torch.tensor(list(law.values())))


def many(engine_with, drafter, **fields):
    return engine_with(LocalDrafting(drafter), max_queued=SEEDS, **fields)


@pytest.mark.parametrize("planner", PlannerName)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_answers_follow_the_target_exactly(engine_with, request_for, rows, reference, law, planner):
    engine = many(engine_with, Mimic(rows), planner=planner)
    outcomes, claims, answers = continuations(engine, request_for, law)
    assert fits(outcomes, reference) > ALPHA
    assert claims == {Claim.EXACT_LAW}
    provenances = [accounted(answer) for answer in answers]
    accepted, drafted = (
        sum(getattr(each, name) for each in provenances) for name in ("accepted_tokens", "draft_tokens")
    )
    # Goodput goes by the times of this machine, and may find that drafts do not pay.
    if planner is not PlannerName.GOODPUT:
        assert drafted > 0.2 * SEEDS
        assert 0.3 < accepted / drafted < 0.95
    assert all(each.reasons == () for each in provenances)


def untilted(row):
    """What the drafter would have drawn from without its tilt."""
    return SparseRow(row.ids, (row.weights[0] / 4.0, *row.weights[1:]))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_recorded_proposal_that_was_not_drawn_from_is_caught(
    engine_with, request_for, rows, reference, law
):
    drafter = Mimic(rows, recorded=untilted)
    outcomes, _, _ = continuations(many(engine_with, drafter), request_for, law)
    assert fits(outcomes, reference) < ALPHA


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_blocks_lost_for_what_they_say_bias_the_answers_and_the_claim_says_so(
    engine_with, request_for, rows, reference, law
):
    class Picky(Mimic):
        def draft(self, jobs):
            [block] = super().draft(jobs)
            if block.tokens and block.tokens[0] == int(block.proposal.ids[0, 0]):
                raise RuntimeError("crashes on the draft that it likes best")
            return [block]

    outcomes, claims, _ = continuations(many(engine_with, Picky(rows)), request_for, law)
    assert fits(outcomes, reference) < ALPHA
    assert claims == {Claim.EXACT_LAW, Claim.UNPROVEN}


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_blocks_cut_short_for_what_they_say_bias_the_answers_and_the_claim_says_so(
    engine_with, request_for, rows, reference, law
):
    class Modest(Mimic):
        def draft(self, jobs):
            [block] = super().draft(jobs)
            liked = [token == ids[0] for token, ids in zip(block.tokens, block.proposal.ids, strict=True)]
            return [block.first([*liked, True].index(True))]

    outcomes, claims, answers = continuations(many(engine_with, Modest(rows)), request_for, law)
    assert fits(outcomes, reference) < ALPHA
    assert claims == {Claim.EXACT_LAW, Claim.UNPROVEN}
    provenance = next(
        answer.finished.provenance for answer in answers if answer.finished.provenance.claim is Claim.UNPROVEN
    )
    assert provenance.fallbacks == {}
    assert any("lost their block, or its end" in reason for reason in provenance.reasons)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_blocks_that_a_rule_of_the_plan_ends_are_proven(engine_with, request_for, rows, reference, law):
    class Obedient(Mimic):
        def draft(self, jobs):
            [block], [job] = super().draft(jobs), jobs
            return [block.first([*(q >= job.stop_below for q in block.max_q), False].index(False))]

    engine = many(engine_with, Obedient(rows), stop_below=0.75)
    outcomes, claims, answers = continuations(engine, request_for, law)
    assert fits(outcomes, reference) > ALPHA
    assert claims == {Claim.EXACT_LAW}
    drafted = {answer.finished.provenance.draft_tokens for answer in answers}
    assert drafted == {0, 1}


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_drafter_that_draws_nothing_may_shorten_and_lose_its_blocks(
    engine_with, request_for, rows, reference, law
):
    """Given what it would have said, sample-and-match is exact whether that is looked at or not."""

    def likeliest(text, length):
        drafts = []
        for _ in range(length):
            drafts.append(int(rows([*text, *drafts]).argmax()))
        if drafts[0] % 2:
            raise RuntimeError("crashes on odd tokens")
        return drafts[: drafts[0] % 3]

    outcomes, claims, _ = continuations(many(engine_with, Scripted(likeliest)), request_for, law)
    assert fits(outcomes, reference) > ALPHA
    assert claims == {Claim.EXACT_LAW}


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_drafter_is_asked_for_no_more_than_its_context_holds(engine_with, request_for, rows, law):
    class Short(Mimic):
        # The prompt, and two more.
        context = 7

    request = request_for("one two three", law=law, sampling=FEW, max_tokens=12)
    assert len(request.prompt_ids) == 5
    provenance = accounted(alone(engine_with(LocalDrafting(Short(rows))), request))
    assert provenance.claim is Claim.EXACT_LAW
    assert provenance.fallbacks == {}
    assert 0 < provenance.draft_tokens <= 3 + 2 + 1


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("character", ["ngram", "mimic", "wrong", "nobody"])
def test_at_temperature_zero_the_answer_is_greedy_whoever_drafts(
    engine_with, request_for, rows, tiny_path, law, character
):
    greedy = Rows(load_model(resolve(str(tiny_path)), "float32", "cpu"), Sampling(temperature=0.0))
    drafters = {
        "ngram": NgramDrafter(),
        "mimic": Mimic(greedy),
        "wrong": Scripted(lambda text, length: [(text[-1] + 1 + k) % 500 for k in range(length)]),
    }
    port = LocalDrafting(drafters[character]) if character in drafters else None
    plain = alone(engine_with(), request_for(law=NONE))
    answer = alone(engine_with(port), request_for(law=law))
    assert answer.token_ids == plain.token_ids
    provenance = accounted(answer)
    assert provenance.claim is Claim.EXACT_LAW
    if character == "mimic":
        assert provenance.accepted_tokens == provenance.draft_tokens > 0


def test_a_drafter_without_proposals_is_sample_and_match_and_the_reasons_say_so(engine_with, request_for):
    drafter = Scripted(lambda text, length: [text[-1]] * length)
    answer = alone(engine_with(LocalDrafting(drafter)), request_for(law=REJECTION))
    [reason] = answer.finished.provenance.reasons
    assert "sample-and-match" in reason
    assert answer.finished.provenance.effective_law == REJECTION


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_same_request_and_drafter_give_the_same_answer(engine_with, request_for, rows, law):
    request = request_for(law=law, sampling=FEW, seed=5)
    first, second = (alone(engine_with(LocalDrafting(Mimic(rows))), request) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.finished.provenance == second.finished.provenance


def test_a_drafter_gets_a_key_for_drafting_alone(engine_with, request_for):
    specs = []

    class Listening(Port):
        def open(self, spec):
            specs.append(spec)

    for law in (COUPLED, *LAWS):
        port = Listening(lambda ticket: [DraftReply(ticket.sequence, ticket.plan_id, DraftBlock())])
        alone(engine_with(port, proposal_entries=7), request_for(law=law, seed=99, max_tokens=3))
    assert [spec.noise_key for spec in specs] == [
        derive_key(99, purpose) for purpose in (Purpose.GUMBEL, Purpose.DRAFT, Purpose.DRAFT)
    ]
    assert [spec.proposal_entries for spec in specs] == [0, 7, 7]


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
    fields = {"draft_deadline_s": 0.01, "step_rows": 48}
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


class Cutting(FixedPlanner):
    """Admits one draft of each block."""

    def admit(self, frontiers, budget):
        one = Budget(rows=min(1, budget.rows))
        return [super(Cutting, self).admit([each], one)[0] for each in frontiers]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_block_that_admission_cuts_takes_its_proposal_along(
    engine_with, request_for, rows, reference, law, monkeypatch
):
    monkeypatch.setattr("verifier_service.build.planner_of", lambda name, most, *rest: Cutting(most))
    outcomes, claims, answers = continuations(many(engine_with, Mimic(rows)), request_for, law)
    assert fits(outcomes, reference) > ALPHA
    assert claims == {Claim.EXACT_LAW}
    assert all(answer.finished.provenance.draft_tokens < 3 for answer in answers)


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
