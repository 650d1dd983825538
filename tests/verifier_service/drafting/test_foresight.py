"""What is answered where a ticket is issued, of forecasts and texts alone."""

from types import SimpleNamespace

import pytest

from cluster.speculation.messages import DraftBlock, PrefixHash
from tests.drafting.helpers import spec
from verifier_service.drafting.forecasts import Answered, Forecasts, Told
from verifier_service.drafting.foresight import Foreseen, Foresight
from verifier_service.drafting.port import DraftTicket

# A drafter that copies what follows the last two tokens, without a wire.
PAIRS = SimpleNamespace(repeats=2, asked=lambda ticket: ticket.length)
NOTHING = DraftBlock()


class Engine:
    """One sequence and its text; what drafters tell of it goes to `forecasts`."""

    def __init__(self, *prompt):
        self.text, self.plan = list(prompt), 0
        self.forecasts = Forecasts()
        self.foresight = Foresight(self.forecasts)
        self.foresight.open(spec(1, prompt))

    def ask(self, *committed):
        self.text += committed
        self.plan += 1
        digest = PrefixHash(self.text).digest()
        return self.foresight.of(DraftTicket(1, self.plan, committed, len(self.text), digest, 4, ""))

    def tell(self, outcomes=None, exhaustive=True, connection=PAIRS, block=NOTHING):
        """Of the latest ticket, which was answered with `block`: blocks by the tokens committed next."""
        blocks = {
            PrefixHash([*self.text, *committed]).digest(): DraftBlock(drafts, (1.0,) * len(drafts))
            for committed, drafts in (outcomes or {}).items()
        }
        of = Answered(self.plan, len(self.text), block)
        told = Told(of, blocks, exhaustive, 8, 0.0, 0.25, connection)
        self.forecasts.put(1, told)
        return told


def test_without_a_forecast_a_block_has_to_be_asked_for():
    engine = Engine(1, 2, 3)
    assert engine.ask() == Foreseen()
    assert engine.ask(9) == Foreseen()


def test_a_block_that_was_told_answers_its_ticket_and_no_other():
    engine = Engine(1, 2, 3, 1)
    engine.ask()
    told = engine.tell({(2,): (3, 1)})
    assert engine.ask(2) == Foreseen(told, DraftBlock((3, 1), (1.0, 1.0)))
    # It was taken.
    assert engine.ask(3) == Foreseen()


def test_of_an_outcome_that_was_not_told_the_drafter_is_asked_if_it_may_have_something():
    engine = Engine(1, 2, 3, 1)
    engine.ask()
    told = engine.tell(exhaustive=False)
    assert engine.ask(2) == Foreseen(told, None)


def test_a_block_of_which_a_beginning_was_verified_goes_on_with_its_rest():
    verified = DraftBlock((2, 3, 1, 2, 3), (0.9, 0.8, 0.7, 0.6, 0.5))
    for committed, rest in (
        ((2, 3), DraftBlock((1, 2, 3), (0.7, 0.6, 0.5))),
        ((2,), DraftBlock((3, 1, 2, 3), (0.8, 0.7, 0.6, 0.5))),
        # Nothing is left of it, or it is more than one token later.
        ((2, 3, 1, 2, 3), None),
        ((7, 2, 3), None),
    ):
        engine = Engine(1, 2, 3, 1)
        engine.ask()
        told = engine.tell(block=verified)
        assert engine.ask(*committed) == Foreseen(told, rest)


def test_where_the_text_has_nothing_to_copy_nothing_is_drafted_told_or_not():
    engine = Engine(1, 2, 3, 4)
    engine.ask()
    told = engine.tell(exhaustive=False)
    # After 1 something may be: the drafter hears of the ticket, though it is answered.
    assert engine.ask(1) == Foreseen(told, NOTHING)


def test_a_drafter_is_told_later_of_rounds_that_end_in_nothing_to_copy():
    engine = Engine(1, 2, 3, 4)
    engine.ask()
    told = engine.tell()
    first, second, third = engine.ask(7), engine.ask(8, 9), engine.ask(1)
    assert (first.block, first.before, first.enough) == (NOTHING, (), True)
    assert (second.block, second.before, second.enough) == (NOTHING, (7,), True)
    assert (third.block, third.before, third.enough) == (NOTHING, (7, 8, 9), False)
    # The forecast goes on with them, but its trip was measured once.
    assert [each.told.trip for each in (first, second, third)] == [0.25, 0.0, 0.0]
    assert (first.told, third.told.of) == (told, told.of)
    # What is handed over is so once.
    assert engine.ask(5) == Foreseen()


def test_a_drafter_that_looks_at_more_than_repetitions_hears_of_every_ticket():
    engine = Engine(1, 2, 3, 4)
    engine.ask()
    told = engine.tell(connection=SimpleNamespace(repeats=0, asked=lambda ticket: 4))
    assert engine.ask(7) == Foreseen(told, NOTHING)


@pytest.mark.parametrize("opened", [True, False], ids=["opened anew", "closed"])
def test_nothing_is_left_of_a_sequence_that_is_over(opened):
    engine = Engine(1, 2, 3, 4)
    engine.ask()
    engine.tell()
    assert engine.ask(7).enough
    engine.foresight.close(1)
    if opened:
        engine.foresight.open(spec(1, (5, 6, 5)))
        engine.text = [5, 6, 5]
    told = engine.tell({(6,): (5,)})
    foreseen = engine.ask(6)
    assert (foreseen.told, foreseen.before) == (told, ())
    # Of a sequence that is not open no forecast answers.
    assert foreseen.block == (DraftBlock((5,), (1.0,)) if opened else None)
