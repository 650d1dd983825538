"""Rejection and block served by the engine: the target's distribution, whatever happens to the blocks,
or a claim that says otherwise."""

from collections import Counter

import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.drafting import NgramDrafter
from cluster.scheduling import Budget, FixedPlanner, PlannerName
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import Purpose, derive_key
from cluster.speculation.proposal import SparseRow
from cluster.speculation.sampling import Sampling
from tests.speculation.helpers import ALPHA, p_value
from tests.verifier_service.helpers import Mimic, Port, Rows, Scripted, accounted, alone
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftReply

LAWS = [REJECTION, BLOCK]
FEW = Sampling(temperature=1.0, top_k=3)
SEEDS = 1500


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


@pytest.fixture
def first_asked(monkeypatch):
    """Whoever is named first is asked first, whatever it is worth."""
    monkeypatch.setattr("verifier_service.engine.rounds.choose", lambda histories, *_: next(iter(histories)))


def shared(engine_with, first, second):
    """An engine whose rounds are the second drafter's where the first has nothing."""
    pools = Pools({"first": LocalDrafting(first), "second": LocalDrafting(second)})
    return engine_with(pools, max_queued=SEEDS, planner=PlannerName.FIXED, block_length=2)


@pytest.fixture
def quoting(reference):
    """Drafts after every other token; whether it does follows from what is committed."""
    likely = sorted({text[0] for text in reference})
    return Scripted(lambda text, length: likely[:length] if text[-1] % 2 else [])


@pytest.mark.usefixtures("first_asked")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_rounds_that_two_drafters_share_are_proven(engine_with, request_for, rows, reference, quoting, law):
    engine = shared(engine_with, quoting, Mimic(rows))
    outcomes, claims, answers = continuations(engine, request_for, law)
    assert fits(outcomes, reference) > ALPHA
    assert claims == {Claim.EXACT_LAW}
    kinds = Counter(each.kind for answer in answers for each in accounted(answer).drafters)
    assert min(kinds["scripted"], kinds["mimic"]) > 0.1 * SEEDS


@pytest.mark.usefixtures("first_asked")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_drafter_that_has_nothing_for_what_it_drew_and_says_that_it_draws_nothing_is_caught(
    engine_with, request_for, rows, reference, quoting, law
):
    """The control: silence that follows from a draw chooses what is verified."""

    class Coy(Mimic):
        certain = True

        def draft(self, jobs):
            [block] = super().draft(jobs)
            liked = block.tokens and block.tokens[0] == int(block.proposal.ids[0, 0])
            return [DraftBlock() if liked else block]

    outcomes, _, _ = continuations(shared(engine_with, Coy(rows), quoting), request_for, law)
    assert fits(outcomes, reference) < ALPHA


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
