"""Decoding on while a block is under way: what is of use of it, which laws do so, and what it depends on."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.scheduling import FixedPlanner, Round
from cluster.speculation.law import COUPLED, NONE, REJECTION
from cluster.speculation.messages import BlockPlan
from tests.verifier_service.helpers import accounted, alone, answered
from verifier_service.batch import Answer
from verifier_service.requests.under_way import worth_waiting


@dataclass(frozen=True)
class Restless(FixedPlanner):
    """Has sequences decode so many tokens while their blocks are under way."""

    meanwhile: int = 0

    def plan(self, history):
        plan = super().plan(history)
        return replace(plan, meanwhile=min(self.meanwhile, max(0, plan.length - 1)))


def test_many_who_are_ready_wait_little_for_a_few_and_none_for_nobody():
    assert worth_waiting(0.03, 8, 0) == 0.0
    waits = [worth_waiting(0.03, 8 - late, late) for late in range(9)]
    assert waits == sorted(waits)
    # All of them together lose what the late ones would: a step each.
    assert all(8 * wait == pytest.approx(0.03 * late) for late, wait in enumerate(waits))


class Held:
    """A port whose blocks come when they are let go."""

    foresees, apart, at_once = False, True, False

    def __init__(self):
        self.tickets = []

    def hold(self):
        pass

    def send(self):
        pass

    def connect(self, deliver):
        self._deliver = deliver

    def open(self, spec):
        pass

    def feed(self, sequence, rows):
        pass

    def request(self, ticket):
        self.tickets.append(ticket)
        return True

    def close(self, sequence, reason):
        pass

    def give(self, ticket, tokens):
        self._deliver(answered(ticket, tokens))


@pytest.fixture
def begun(engine_with, request_for):
    """An engine that has decoded the first token of a request, its answer, its port, and its whole text."""

    def begin(meanwhile=2, law=COUPLED, length=5, **fields):
        request = request_for(law=law, **fields)
        text = [*request.prompt_ids, *alone(engine_with(), replace(request, law=NONE)).token_ids]
        port, answer = Held(), Answer()
        planner = Restless(length, hides=True, meanwhile=meanwhile)
        engine = engine_with(port, planner, block_length=length)
        engine.submit(request, answer.take)
        engine.step()
        return engine, answer, port, text

    return begin


def finish(engine, answer, port, text):
    """Answers whatever is asked for with what is right."""
    done = 0
    while answer.finished is None:
        for ticket in port.tickets[done:]:
            port.give(ticket, text[ticket.base :][: ticket.length])
        done = len(port.tickets)
        engine.step()
    return accounted(answer)


def decoded(engine):
    """How many tokens the only sequence has."""
    [sequence] = engine._admission.active.values()
    return len(sequence.tokens)


def test_of_a_block_that_was_overtaken_what_is_left_is_verified(begun):
    engine, answer, port, text = begun(max_tokens=20)
    [ticket] = port.tickets
    for count in (1, 2):
        engine.step()
        assert decoded(engine) == ticket.base + count
    port.give(ticket, text[ticket.base :][:5])
    engine.step()
    # The three drafts that were left, and the token after them.
    assert decoded(engine) == ticket.base + 6
    assert len(port.tickets) == 2
    provenance = finish(engine, answer, port, text)
    assert answer.token_ids == text[-len(answer.token_ids) :]
    assert (provenance.meanwhile_rounds, provenance.fallbacks) == (2, {})
    assert engine.measurements.experience("", "drafters").accepted >= 5


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_block_that_was_overtaken_by_other_tokens_is_dropped_and_another_asked_for(begun, wrong):
    engine, answer, port, text = begun(max_tokens=20)
    [ticket] = port.tickets
    engine.step()
    engine.step()
    block = text[ticket.base :][:5]
    block[wrong] = (block[wrong] + 1) % 512
    port.give(ticket, block)
    # Before anything else is decoded.
    engine._take_in()
    assert len(port.tickets) == 2
    assert port.tickets[1].base == decoded(engine) == ticket.base + 2
    [sequence] = engine._admission.active.values()
    assert sequence.past["drafters"].rounds[-1] == Round(5, wrong + 1, wrong, False, (1.0,) * (wrong + 1))
    provenance = finish(engine, answer, port, text)
    assert answer.token_ids == text[-len(answer.token_ids) :]
    assert provenance.fallbacks == {}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whenever_blocks_come_and_whatever_they_say_no_token_changes(begun, data):
    engine, answer, port, text = begun(
        data.draw(st.integers(1, 6)),
        length=data.draw(st.integers(2, 7)),
        temperature=data.draw(st.sampled_from([0.0, 0.7, 1.5])),
        max_tokens=data.draw(st.integers(4, 20)),
        seed=data.draw(st.integers(0, 9)),
    )
    done = 0
    while answer.finished is None:
        if len(port.tickets) > done:
            [sequence] = engine._admission.active.values()
            must = sequence.under_way is None or not sequence.goes_on(0.0)
            if must or data.draw(st.booleans()):
                ticket, done = port.tickets[done], done + 1
                block = text[ticket.base :][: data.draw(st.integers(0, ticket.length))]
                if block and data.draw(st.booleans()):
                    at = data.draw(st.integers(0, len(block) - 1))
                    block[at] = (block[at] + 1) % 512
                port.give(ticket, block)
        engine.step()
    assert answer.token_ids == text[-len(answer.token_ids) :]
    assert accounted(answer).fallbacks == {}


def moves(engine_with, request_for, law, block):
    """What is decided of a request whose first block comes after two steps and has these drafts: how many
    tokens it has after each of them, what it had asked for, and how many drafts were verified; and the tokens
    that it decoded meanwhile."""
    port = Held()
    planner = Restless(4, hides=True, meanwhile=3)
    patient = {"draft_deadline_s": 600.0, "draft_patience_s": 600.0}
    engine = engine_with(port, planner, block_length=4, **patient)
    engine.submit(request_for("one two three one two", 1.0, law), lambda event: None)
    # One that never waits, so that there is always a step.
    engine.submit(request_for("the river", law=NONE), lambda event: None)
    engine.step()
    [sequence, _] = engine._admission.active.values()
    seen = []
    for _ in range(2):
        engine.step()
        seen.append(len(sequence.tokens))
    [ticket] = port.tickets
    meanwhile = sequence.tokens[ticket.base :]
    port.give(ticket, block)
    engine.step()
    return (seen, (ticket.base, ticket.length), sequence.tally.drafted), meanwhile


blocks = st.lists(st.integers(0, 511), min_size=4, max_size=4)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=blocks, after=blocks)
def test_under_a_law_that_waits_nothing_that_was_drafted_decides_what_is_verified(
    engine_with, request_for, before, after
):
    first, _ = moves(engine_with, request_for, REJECTION, before)
    assert first == moves(engine_with, request_for, REJECTION, after)[0]
    seen, (base, length), verified = first
    # It stood still, and all of its block was verified.
    assert (seen, length, verified) == ([base, base], 4, 4)


def test_a_verifier_that_goes_on_under_such_a_law_is_caught(engine_with, request_for, monkeypatch):
    (seen, (base, _), _), _ = moves(engine_with, request_for, COUPLED, [0] * 4)
    assert seen == [base + 1, base + 2]
    monkeypatch.setattr("verifier_service.engine.rounds.COUPLED", REJECTION)
    wrong, meanwhile = moves(engine_with, request_for, REJECTION, [511] * 4)
    right, _ = moves(engine_with, request_for, REJECTION, [*meanwhile, 0, 0])
    assert (wrong[-1], right[-1]) == (0, 2)


def test_a_plan_says_how_long_to_go_on(begun):
    engine, answer, port, text = begun(meanwhile=1, max_tokens=12)
    engine.step()
    [sequence] = engine._admission.active.values()
    assert not sequence.goes_on(0.0)
    # What is overdue is not waited for either.
    assert sequence.goes_on(sequence.patience)
    assert finish(engine, answer, port, text).meanwhile_rounds == 1
    assert BlockPlan(3).meanwhile == 0
