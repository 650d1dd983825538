"""What blocks are waited for: by length, as it is, whether a drafter takes time for each token or not."""

import pytest

from verifier_service.measuring.waits import Wait


def waited(drafting, besides=0.0, lengths=(4,), times=20):
    wait = Wait()
    for _ in range(times):
        for length in lengths:
            wait.add(length, besides + drafting(length), drafting(length))
    return wait.line


@pytest.mark.parametrize(
    ("start", "slope"), [(0.02, 0.0), (0.0, 0.005), (0.01, 0.003)], ids=["at once", "by token", "both"]
)
def test_a_line_is_found_where_lengths_differ(start, slope):
    base, per_token = waited(lambda k: start + slope * k, besides=0.1, lengths=(1, 4, 8))
    for length in (1, 4, 8):
        expected = start + slope * length
        assert base - 0.1 + per_token * length == pytest.approx(expected, rel=0.1)


def test_of_one_length_each_token_is_taken_to_cost_the_same_until_another_is_seen():
    base, per_token = waited(lambda _: 0.02)
    assert (base, per_token) == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.005))
    base, per_token = waited(lambda _: 0.02, lengths=(4, 4, 4, 4, 4, 1))
    assert base + per_token == pytest.approx(0.02, rel=0.1)
    assert base + 4 * per_token == pytest.approx(0.02, rel=0.1)


def test_shorter_blocks_are_never_taken_to_cost_more_than_longer_ones():
    base, per_token = waited(lambda k: 0.05 - 0.002 * k, lengths=(1, 8))
    assert per_token >= 0.0
    assert base > 0.0


def test_a_drafter_that_becomes_slower_is_believed():
    wait = Wait()
    for _ in range(50):
        wait.add(4, 0.02, 0.02)
    for _ in range(50):
        wait.add(4, 0.08, 0.08)
    base, per_token = wait.line
    assert base + 4 * per_token == pytest.approx(0.08, rel=0.05)
