"""Two drafter pools in one engine: the answer is the same, and the one that is right is asked."""

import pytest

from cluster.scheduling import PlannerName
from cluster.speculation.law import NONE
from cluster.speculation.messages import BlockPlan
from tests.verifier_service.helpers import Port, Scripted, accounted, alone, oracle
from verifier_service.batch import answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftReply, Fallback


class Counting(LocalDrafting):
    def __init__(self, drafter):
        super().__init__(drafter)
        self.asked = 0

    def request(self, ticket):
        self.asked += 1
        super().request(ticket)


def wrong(text, length):
    return [(text[-1] + 1 + k) % 500 for k in range(length)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("first", ["right", "wrong"])
def test_the_pool_that_is_right_is_asked_and_the_tokens_are_the_same(
    engine_with, request_for, first, temperature
):
    request = request_for(temperature=temperature, max_tokens=200)
    plain = alone(engine_with(), request_for(temperature=temperature, max_tokens=200, law=NONE))
    pools = {
        "right": Counting(oracle([*request.prompt_ids, *plain.token_ids])),
        "wrong": Counting(Scripted(wrong)),
    }
    names = sorted(pools, key=lambda name: name != first)
    engine = engine_with(Pools({name: pools[name] for name in names}), planner=PlannerName.GOODPUT)
    answer = alone(engine, request)
    assert answer.token_ids == plain.token_ids
    assert accounted(answer).accepted_tokens > 100
    # Each is told what was committed while the other drafted, or it could not be right.
    assert pools["right"].asked > 2 * pools["wrong"].asked


def test_a_pool_that_is_gone_leaves_its_requests_to_the_other(engine_with, request_for):
    def gone(ticket):
        return [DraftReply(ticket.sequence, ticket.plan_id, None, fallback=Fallback.NO_DRAFTER)]

    request = request_for(max_tokens=120)
    plain = alone(engine_with(), request_for(max_tokens=120, law=NONE))
    right = LocalDrafting(oracle([*request.prompt_ids, *plain.token_ids]))
    engine = engine_with(Pools({"drafters": Port(gone), "local": right}), planner=PlannerName.GOODPUT)
    answer = alone(engine, request)
    assert answer.token_ids == plain.token_ids
    provenance = accounted(answer)
    assert [each.kind for each in provenance.drafters] == ["scripted"]
    assert provenance.accepted_tokens > 60


def test_who_has_nothing_at_once_leaves_the_round_to_the_other(engine_with, request_for):
    request = request_for(max_tokens=200, ignore_eos=True)
    plain = alone(engine_with(), request_for(max_tokens=200, law=NONE, ignore_eos=True))
    text = [*request.prompt_ids, *plain.token_ids]
    # Both are right; one says much in a third of the places, the other a word wherever it is asked.
    quoting = Counting(Scripted(lambda known, length: text[len(known) :] if len(known) % 3 == 0 else []))
    knowing = Counting(Scripted(lambda known, length: text[len(known) :][:1]))
    pools = Pools({"quoting": quoting, "knowing": knowing})
    answer = alone(engine_with(pools, planner=PlannerName.FIXED, block_length=3), request)
    assert answer.token_ids == plain.token_ids
    rounds = accounted(answer).rounds
    # From each place with a quotation to the next it is four tokens and two.
    assert quoting.asked > 0.9 * rounds
    assert knowing.asked == pytest.approx(rounds / 2, rel=0.2)
    assert accounted(answer).accepted_tokens == pytest.approx(2 * rounds, rel=0.2)


def test_a_round_in_which_all_have_nothing_is_a_plain_one(engine_with, request_for):
    request = request_for(max_tokens=60, ignore_eos=True)
    plain = alone(engine_with(), request_for(max_tokens=60, law=NONE, ignore_eos=True))
    ports = [Counting(Scripted(lambda text, length: [])) for _ in range(2)]
    pools = Pools(dict(zip("ab", ports, strict=True)))
    answer = alone(engine_with(pools, planner=PlannerName.FIXED, draft_ahead=False), request)
    assert answer.token_ids == plain.token_ids
    assert accounted(answer).rounds == 60
    assert accounted(answer).fallbacks == {}
    assert [port.asked for port in ports] == [58, 58]


def test_pools_without_a_port_are_refused():
    with pytest.raises(ValueError, match="at least one port"):
        Pools({})


class Noted(LocalDrafting):
    """Notes what it hears of."""

    def __init__(self, drafter):
        super().__init__(drafter)
        self.heard = []

    def open(self, spec):
        self.heard.append("open")
        super().open(spec)

    def request(self, ticket):
        self.heard.append("request")
        return super().request(ticket)

    def close(self, sequence, reason):
        self.heard.append("close")
        super().close(sequence, reason)


def test_a_pool_hears_of_a_sequence_with_its_first_plan_and_not_before(engine_with, request_for):
    """A session at a drafter costs messages, and an answer for which nothing is drafted has none."""

    class Late:
        def plan(self, history):
            late = history.committed > len(request.prompt_ids) + 5
            return BlockPlan(min(2, history.remaining - 1) if late else 0)

        def admit(self, frontiers, budget):
            return [0] * len(frontiers)

    request = request_for(max_tokens=50, ignore_eos=True)
    asked, never = Noted(Scripted(wrong)), Noted(Scripted(wrong))
    answer = alone(engine_with(asked, planned_by=Late()), request)
    assert asked.heard[:2] == ["open", "request"]
    # Planned anew after eight plain rounds.
    assert 10 < asked.heard.count("request") < len(answer.token_ids) - 7
    assert (asked.heard.count("open"), asked.heard[-1], asked.heard.count("close")) == (1, "close", 1)
    alone(engine_with(never, planned_by=Never()), request)
    assert never.heard == []


class Never:
    """Plans no draft, and notes after how many plain rounds it was asked."""

    def __init__(self):
        self.idle = []

    def plan(self, history):
        self.idle.append(history.idle)
        return BlockPlan(0)

    def admit(self, frontiers, budget):
        return [0] * len(frontiers)


def test_a_round_to_compare_with_is_no_decision_to_decode_plainly(engine_with, request_for):
    seen = []

    class Probing:
        def plan(self, history):
            seen.append((history.idle, history.unbroken))
            probe = history.unbroken == 3
            return BlockPlan(0 if probe else min(1, history.remaining - 1), probe=probe)

        def admit(self, frontiers, budget):
            return [0] * len(frontiers)

    request = request_for(max_tokens=12, ignore_eos=True)
    drafter = Scripted(wrong)
    # Or its plans would stand for some rounds.
    drafter.certain = False
    alone(engine_with(LocalDrafting(drafter), planned_by=Probing()), request)
    assert seen == [(0, n % 4) for n in range(11)]


def test_who_decodes_plainly_is_planned_for_again_when_the_load_has_changed(engine_with, request_for):
    planner = Never()
    engine = engine_with(LocalDrafting(Scripted(wrong)), planned_by=planner)
    alone(engine, request_for(max_tokens=40))
    assert planner.idle == [0, 8, 16, 24, 32]
    planner.idle.clear()
    # Among many less often, until they are done.
    short = [request_for("the river", max_tokens=12, seed=seed, ignore_eos=True) for seed in range(19)]
    answer_all(engine, [request_for(max_tokens=40, ignore_eos=True), *short])
    assert planner.idle == [0] * 20 + [11, 19, 27, 35]


@pytest.mark.parametrize("certain", [True, False], ids=["at once", "later"])
def test_who_drafts_in_less_time_than_a_plan_takes_is_planned_for_in_one_round_of_four(
    engine_with, request_for, certain
):
    planned, silent = [], Scripted(lambda text, length: [])
    silent.certain = certain

    class Counting:
        def plan(self, history):
            planned.append(history.drafter)
            return BlockPlan(min(2, history.remaining - 1))

        def admit(self, frontiers, budget):
            return [0] * len(frontiers)

    request = request_for(max_tokens=21, ignore_eos=True)
    drafting = Noted(silent)
    alone(engine_with(drafting, planned_by=Counting()), request)
    # It is asked in every round but the prompt's all the same, and the last one has no room for a draft.
    assert drafting.heard.count("request") == 19
    # Near the end every plan may be another.
    assert len(planned) == (8 if certain else 20)
