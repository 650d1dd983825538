import pytest

from cluster.bench.statistics import Mean, geometric_mean, mean_interval, paired_ratio


def test_a_constant_ratio_has_a_point_interval():
    ratio = paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert ratio.against(2.0) == "met"
    assert ratio.against(2.01) == "missed"


def test_pairing_removes_what_both_sides_share():
    drift = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0]
    assert paired_ratio([1.2 * d for d in drift], drift).against(1.19) == "met"


def test_a_wide_spread_around_the_target_is_not_resolved():
    assert paired_ratio([0.7, 1.3, 0.8, 1.4, 0.9, 1.2, 1.1], [1.0] * 7).against(1.0) == "not resolved"


def test_the_same_measurements_give_the_same_interval():
    values = [0.9, 1.1, 1.0, 1.3, 0.8, 1.2, 1.05]
    assert paired_ratio(values, [1.0] * 7) == paired_ratio(values, [1.0] * 7)


@pytest.mark.parametrize(("left", "right"), [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_measurements_are_refused(left, right):
    with pytest.raises(ValueError, match="as many"):
        paired_ratio(left, right)


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_a_mean_has_an_interval_that_shrinks_with_the_sample():
    few, many = mean_interval([0.0, 1.0] * 5), mean_interval([0.0, 1.0] * 500)
    assert few.mean == many.mean == 0.5
    assert few.low < 0.4 < many.low < 0.5 < many.high < 0.6 < few.high
    assert mean_interval([2.0, 2.0]) == Mean(2.0, 2.0, 2.0)


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
