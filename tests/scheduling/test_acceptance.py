"""What is expected of a block, from what blocks before it came to."""

import pytest
from hypothesis import given

from cluster.scheduling import Experience, History, Round
from cluster.scheduling.acceptance import measured, outlook
from tests.scheduling.helpers import RESCUED, histories, past
from verifier_service.measuring.measurements import Measurements


@given(histories)
def test_what_is_expected_of_a_block_is_possible(history):
    expected = outlook(history, 8)
    assert len(expected.tokens) == len(expected.rows) == 9
    assert (expected.tokens[0], expected.rows[0]) == (1.0, 0.0)
    for k in range(8):
        more_tokens, more_rows = (values[k + 1] - values[k] for values in (expected.tokens, expected.rows))
        assert -1e-12 <= more_tokens <= more_rows + 1e-9 <= 1.0 + 2e-9


def test_what_rounds_came_to_is_counted_without_a_prior():
    # Of three blocks one is empty, and of the two others the second is right to the end.
    seen = measured((Round(2, 0, 0), Round(2, 2, 1), Round(2, 2, 2)), 2)
    assert seen.rows == pytest.approx((0.0, 2 / 3, 4 / 3))
    assert seen.tokens == pytest.approx((1.0, 1 + 2 / 3, 1 + 2 / 3 + 1 / 3))
    assert measured((), 2).tokens == (1.0, 1.0, 1.0)


def test_long_blocks_that_are_right_and_short_ones_that_are_not_are_expected_as_they_come():
    """A drafter that looks drafts up says much where it is right: apart, its length and its chances promise
    less than came about."""
    rounds = (Round(8, 8, 8), Round(8, 8, 8), Round(8, 2, 0), Round(8, 0, 0)) * 8
    seen = measured(rounds, 8)
    assert seen.tokens[8] == pytest.approx(1 + 16 / 4)
    assert seen.rows[8] == pytest.approx(18 / 4, rel=0.05)
    # With what is assumed before anything is known.
    assert outlook(History(50, 1000, rounds), 8).tokens[8] == pytest.approx(5, rel=0.1)


def test_what_a_tree_is_expected_to_bring_is_what_siblings_add_to_a_chain():
    plain = outlook(History(50, 500, past(4, 4, 40)), 4)
    tree = outlook(History(50, 500, past(4, 4, 40)), 4, 2)
    # All first drafts are accepted: there is nothing to save, and twice the rows.
    assert tree.tokens == pytest.approx(plain.tokens, abs=0.1)
    assert tree.rows == pytest.approx([2 * rows for rows in plain.rows])
    chain, tree = (outlook(History(50, 500, RESCUED), 4, width) for width in (1, 2))
    # Half of the first drafts are, and then as a rule another.
    assert chain.tokens[4] < 2.2
    assert tree.tokens[4] > 3.5
    assert tree.tokens == tuple(sorted(tree.tokens))


def test_experience_of_siblings_is_shared_by_requests_of_a_domain():
    measured_so_far = Measurements(None)
    for _ in range(10):
        measured_so_far.decided("chat", "pool", RESCUED[0])
    known = measured_so_far.experience("chat", "pool")
    assert (known.tried, known.accepted, known.later_tried, known.later_right) == (40, 20, 20, 20)
    new, old = (History(50, 500, experience=each) for each in (known, Experience(40, 20, 20, 0)))
    assert outlook(new, 4, 2).tokens[4] > outlook(old, 4, 2).tokens[4]
