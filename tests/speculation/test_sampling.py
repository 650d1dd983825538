"""The transforms against transformers' own, row by row."""

import pytest
import torch
from transformers import (
    EtaLogitsWarper,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from cluster.speculation.catalogue import parse
from cluster.speculation.sampling import Sampling, target_probs, target_probs_together
from verifier_service.verification.truncation import truncated

SAMPLINGS = [
    Sampling(temperature=0.7),
    Sampling(temperature=1.5),
    Sampling(top_k=1),
    Sampling(top_k=40),
    Sampling(top_p=0.1),
    Sampling(top_p=0.9),
    Sampling(top_p=0.999),
    Sampling(min_p=0.1),
    Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.02),
    Sampling(typical_p=0.2),
    Sampling(typical_p=0.95),
    Sampling(eta_cutoff=0.0003),
    Sampling(eta_cutoff=0.09),
    Sampling(temperature=1.2, top_k=200, typical_p=0.9, eta_cutoff=0.001),
]


def logits(rows=6, vocab=3000, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * scale


def reference(values, sampling):
    warpers = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1.0 else []
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1.0 else []
    warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    warpers += [TypicalLogitsWarper(sampling.typical_p)] if sampling.typical_p < 1.0 else []
    warpers += [EtaLogitsWarper(sampling.eta_cutoff)] if sampling.eta_cutoff else []
    for warper in warpers:
        values = warper(None, values)
    return torch.softmax(values, -1)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0], ids=["flat", "usual", "peaked"])
def test_each_transform_is_that_of_transformers(sampling, scale):
    values = logits(scale=scale)
    ours, theirs = target_probs(values, sampling), reference(values, sampling)
    # Such a set ends where a sum reaches its probability; theirs is rounded to single precision, ours is not.
    edge = (ours > 0) != (theirs > 0)
    assert edge.sum(-1).max() <= (1 if sampling.top_p < 1.0 or sampling.typical_p < 1.0 else 0)
    assert (ours + theirs)[edge].sum() < 5e-4
    torch.testing.assert_close(ours[~edge], theirs[~edge], atol=1e-6, rtol=1e-3 if edge.any() else 1e-4)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(temperature=0.0)], ids=str)
def test_a_row_is_bitwise_the_same_alone_and_among_others(sampling):
    values = logits()
    together = target_probs(values, sampling)
    for index in range(len(values)):
        assert torch.equal(target_probs(values[index : index + 1], sampling)[0], together[index])


def test_greedy_takes_the_lowest_id_of_a_tie():
    probs = target_probs(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), Sampling(temperature=0.0))
    assert probs.tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-39, 1e-6, 1e-3, 1e3, 1e6, 1e300])
def test_extreme_temperatures_stay_finite(temperature):
    probs = target_probs(logits(scale=50.0), Sampling(temperature=temperature))
    assert torch.isfinite(probs).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(probs)))


def test_a_tiny_temperature_is_greedy_and_a_huge_one_uniform():
    values = logits(vocab=50)
    greedy = target_probs(values, Sampling(temperature=0.0))
    assert torch.equal(target_probs(values, Sampling(temperature=1e-300)), greedy)
    uniform = torch.full((6, 50), 1 / 50)
    torch.testing.assert_close(target_probs(values, Sampling(temperature=1e300)), uniform)


TIED = torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        (Sampling(top_k=1), [0, 2]),
        (Sampling(top_k=3), [0, 1, 2, 3, 4]),
        (Sampling(top_p=0.1), [0, 2]),
        (Sampling(top_p=0.7), [0, 1, 2, 3, 4]),
        (Sampling(min_p=0.3), [0, 1, 2, 3, 4]),
        (Sampling(min_p=0.9), [0, 2]),
        # The surprises 1.1, 2.1 and 3.1 lie 0.4, 0.6 and 1.6 from the entropy of 1.47.
        (Sampling(typical_p=0.1), [0, 2]),
        (Sampling(typical_p=0.7), [0, 1, 2, 3, 4]),
        # √0.2 · e^-1.47 = 0.10: the last has 0.04.
        (Sampling(eta_cutoff=0.2), [0, 1, 2, 3, 4]),
        (Sampling(eta_cutoff=0.99), [0, 2]),
        (Sampling(temperature=0.0), [0]),
    ],
    ids=str,
)
def test_tokens_that_tie_at_an_edge_stay_in_together(sampling, support):
    """Which of them stays cannot then depend on the order in which a kernel sorts them."""
    [row] = target_probs(TIED, sampling)
    assert row.nonzero()[:, 0].tolist() == support
    kept = torch.softmax(TIED[0], -1)[support]
    torch.testing.assert_close(row[support], kept / kept.sum() if len(support) > 1 else torch.ones(1))


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999])
def test_a_nucleus_of_thousands_of_tokens_is_whole(top_p):
    values = logits(rows=3, vocab=8000, scale=0.2)
    ours = target_probs(values, Sampling(top_p=top_p))
    probs = torch.softmax(values.double(), -1)
    ordered, order = probs.sort(descending=True)
    # The smallest set of likeliest tokens whose probability reaches top_p.
    size = (ordered.cumsum(-1) < top_p).sum(-1) + 1
    assert bool((size > 1024).all())
    for row, ids, count in zip(ours, order, size.tolist(), strict=True):
        # Single precision may draw the edge one token further on or back.
        assert abs(int((row > 0).sum()) - count) <= 2
        assert bool((row[ids[: count - 2]] > 0).all())


@pytest.mark.parametrize("row", [[1.0, 1.0, 1.0], [30.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
@pytest.mark.parametrize("sampling", [Sampling(typical_p=1e-9), Sampling(eta_cutoff=1 - 1e-9)], ids=str)
def test_the_narrowest_sets_keep_a_token(row, sampling):
    probs = target_probs(torch.tensor([row]), sampling)
    assert float(probs.sum()) == pytest.approx(1.0)


def test_typicality_can_leave_out_the_most_probable_token():
    """Which sets that end at a probability cannot: it is a truncation from both sides."""
    [row] = target_probs(torch.tensor([[0.4, 0.12, 0.12, 0.12, 0.12, 0.12]]).log(), Sampling(typical_p=0.4))
    assert row.nonzero()[:, 0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("epsilon", [0.001, 0.09, 0.3])
def test_eta_sampling_is_the_set_that_medusa_accepts(epsilon):
    law = parse("truncation:typical", {"epsilon": epsilon, "delta": epsilon**0.5})
    values = logits(scale=4.0)
    probs = target_probs(values, Sampling())
    for row, strict in zip(probs, target_probs(values, Sampling(eta_cutoff=epsilon)), strict=True):
        lossy = truncated(law, row, float(row.double().sum()))
        assert torch.equal(lossy > 0, strict > 0)


def test_top_k_beyond_the_vocabulary_keeps_all():
    values = logits(vocab=20)
    assert torch.equal(
        target_probs(values, Sampling(top_k=50)), torch.softmax(values - values.amax(-1, True), -1)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("min_p", float("nan")),
        ("typical_p", 0.0),
        ("typical_p", 1.5),
        ("typical_p", float("nan")),
        ("eta_cutoff", -0.1),
        ("eta_cutoff", 1.0),
        ("eta_cutoff", float("nan")),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be"):
        Sampling(**{field: value})


def test_rows_of_several_requests_are_bitwise_those_of_each():
    values, samplings = logits(rows=3 * len(SAMPLINGS)), [Sampling(temperature=0.0), *SAMPLINGS]
    asked = [(values[i : i + 1 + i % 3], sampling) for i, sampling in enumerate(samplings)]
    for (rows, sampling), together in zip(asked, target_probs_together(asked), strict=True):
        for row, found in zip(rows, together, strict=True):
            assert torch.equal(target_probs(row[None], sampling)[0], found)
    assert target_probs_together([]) == []
