from cluster.speculation.distortion import NO_DISTORTION, Distortion, DistortionTotals


def test_totals_are_sums_and_maxima_over_rounds():
    totals = DistortionTotals().plus([Distortion(0.1, 1.5, 0.02), NO_DISTORTION])
    totals = totals.plus([]).plus([Distortion(0.3, 1.2, 0.5)])
    assert totals.tokens == 3
    assert abs(totals.tv_total - 0.4) < 1e-15
    assert abs(totals.tv_mean - 0.4 / 3) < 1e-15
    assert (totals.tv_max, totals.overshoot_max) == (0.3, 1.5)
    assert abs(totals.kl_total - 0.52) < 1e-15


def test_a_request_without_tokens_has_no_distortion():
    assert DistortionTotals().tv_mean == 0.0
    assert DistortionTotals().overshoot_max == 1.0
