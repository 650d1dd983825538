"""Lossy laws: what the shipped `verify` emits against closed forms, ceilings, budgets and the ledger."""

import itertools
import math

import pytest
import torch

from cluster.lab.world import constant_world, random_world
from cluster.speculation.catalogue import parse
from cluster.speculation.distortion import NO_DISTORTION
from cluster.speculation.law import REJECTION, Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import DraftField, Noise
from cluster.speculation.proposal import ProposalError, SparseRow, pack, truncate
from tests.verifier_service.verification import closed_forms
from tests.verifier_service.verification.helpers import emitted
from verifier_service.verification import output_laws, verify

EXACT = 1e-12
TRUNCATION = [
    parse("truncation:min_p", {"min_p": 0.3}),
    parse("truncation:min_p", {"min_p": 1.0}),
    parse("truncation:typical"),
    parse("truncation:typical", {"epsilon": 0.6, "delta": 0.9}),
]
COLLABORATIVE = [
    parse("collaborative:lenience", {"lenience": 0.6}),
    parse("collaborative:lenience", {"lenience": 0.1}),
    parse("collaborative:lenience", {"lenience": 0.2, "ceiling": 1.5}),
    parse("collaborative:interpolation", {"lambda": 0.4, "ceiling": 1.8}),
    parse("collaborative:interpolation", {"lambda": 0.0, "ceiling": 1e6}),
    parse("collaborative:mentored", {"max_kl": 0.03}),
    parse("collaborative:mentored", {"max_kl": 0.3, "ceiling": 1.3}),
    parse("collaborative:cactus", {"delta": 0.05, "ceiling": 3.0}),
    parse("collaborative:cactus", {"delta": 0.3, "ceiling": 1.4}),
]
FAMILIES = ["lenience", "interpolation", "mentored", "cactus"]


def name_of(law):
    return f"{law}-" + "-".join(f"{name}={value:g}" for name, value in law.params)


def worlds(vocab):
    for seed in range(4):
        yield random_world(seed, vocab)
        yield random_world(seed, vocab, sharpness=3.0)
        yield random_world(seed, vocab, target_zeros=1)
        yield random_world(seed, vocab, proposal_zeros=vocab - 2)
        yield random_world(seed, vocab, proposal_zeros=vocab - 1)


def dense(row, vocab):
    q = torch.zeros(vocab, dtype=torch.float64)
    q[list(row.ids)] = torch.tensor(row.probs, dtype=torch.float64)
    return q


def rows_at(world, prefix):
    return torch.tensor(world.target(prefix), dtype=torch.float64), dense(world.proposal(prefix), world.vocab)


def next_law(found, prefix, vocab):
    """The law of the token after a prefix of accepted drafts, from what rounds emit."""
    law = torch.zeros(vocab, dtype=torch.float64)
    for tokens, probability in found.items():
        if tokens[: len(prefix)] == prefix and len(tokens) > len(prefix):
            law[tokens[len(prefix)]] += probability
    return law / law.sum() if float(law.sum()) > 0 else None


@pytest.mark.parametrize("law", TRUNCATION + COLLABORATIVE, ids=name_of)
@pytest.mark.parametrize(("vocab", "length"), [(2, 2), (3, 2), (4, 1)])
def test_what_is_emitted_is_the_closed_form(law, vocab, length):
    checked = 0
    for world in worlds(vocab):
        _, found = emitted(world, law, length)
        for k in range(length + 1):
            for prefix in itertools.product(range(vocab), repeat=k):
                law_here = next_law(found, prefix, vocab)
                if law_here is None or len(prefix) > length:
                    continue
                p, q = rows_at(world, prefix)
                if k < length:
                    expected = closed_forms.output(law, p, q)
                else:
                    expected = closed_forms.truncated(p, law) if law in TRUNCATION else p
                torch.testing.assert_close(law_here, expected, rtol=0, atol=EXACT)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize("law", TRUNCATION + COLLABORATIVE, ids=name_of)
def test_the_integration_tells_the_lossy_laws_from_the_target(law):
    """Otherwise the test above could pass with any of them."""
    world = constant_world((0.62, 0.3, 0.08), (0.2, 0.3, 0.5))
    p, _ = rows_at(world, ())
    law_here = next_law(emitted(world, law, 1)[1], (), 3)
    assert 0.5 * float((law_here - p).abs().sum()) > 0.01


def test_capping_the_proposal_is_lenience():
    for world in worlds(4):
        p, q = rows_at(world, ())
        for ell in (0.2, 0.5, 0.9):
            expected = closed_forms.lenience(p, q, ell)
            torch.testing.assert_close(closed_forms.cap(q, p, 1 / ell), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("law", COLLABORATIVE, ids=name_of)
def test_no_token_exceeds_the_ceiling(law):
    ceiling = law.param("ceiling") or (1.0 / law.param("lenience") if law.param("lenience") else math.inf)
    largest = 0.0
    for world in worlds(4):
        p, _ = rows_at(world, ())
        _, found = emitted(world, law, 1)
        out = next_law(found, (), 4)
        assert bool((out[p > 0] <= ceiling * p[p > 0] + EXACT).all())
        largest = max(largest, float((out / p)[p > 0].max()))
    # A ceiling that is never reached would not have been tested.
    if ceiling < 2.0:
        assert largest == pytest.approx(ceiling, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ceiling", [None, 1.5])
def test_a_budget_is_spent_as_far_as_it_goes_and_no_further(family, ceiling):
    bounded = {} if ceiling is None else {"ceiling": ceiling}
    spent_in_full = 0
    for world in worlds(4):
        p, _ = rows_at(world, ())
        most = tv_of(world, parse(f"collaborative:{family}", {"max_distortion": 1.0, **bounded}), p)
        for budget in (1e-6, 0.01, 0.05, 0.2):
            law = parse(f"collaborative:{family}", {"max_distortion": budget, **bounded})
            spent = tv_of(world, law, p)
            assert spent <= budget + 1e-14
            assert spent == pytest.approx(min(budget, most), abs=1e-9)
            spent_in_full += budget <= most
    assert spent_in_full > 20


def tv_of(world, law, p):
    out = next_law(emitted(world, law, 1)[1], (), world.vocab)
    return 0.5 * float((out - p).abs().sum())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_budget_the_verdict_is_the_strict_laws_bit_for_bit(family, dtype):
    strict_params = {"lenience": 1.0, "interpolation": 1.0, "mentored": 0.0, "cactus": 0.0}
    own = {"lenience": "lenience", "interpolation": "lambda", "mentored": "max_kl", "cactus": "delta"}
    laws = [
        parse(f"collaborative:{family}", {"max_distortion": 0.0}),
        parse(f"collaborative:{family}", {own[family]: strict_params[family], "ceiling": 4.0}),
    ]
    generator = torch.Generator().manual_seed(1)
    accepted = set()
    for seed in range(60):
        rows = torch.softmax(torch.randn(4, 30, generator=generator, dtype=dtype) * 2, -1)
        sent = [truncate(torch.softmax(row.log() * 0.6, -1), 8) for row in rows[:3]]
        tokens = tuple(DraftField(seed, 0).draw(k, row) for k, row in enumerate(sent))
        block = DraftBlock(tokens, (1.0,) * 3, proposal=pack(sent))
        expected = verify(REJECTION, rows, block, Noise(seed, 0))
        for law in laws:
            verdict = verify(law, rows, block, Noise(seed, 0))
            assert (verdict.tokens, verdict.accepted) == (expected.tokens, expected.accepted)
            assert all(each.tv == 0.0 and each.overshoot == 1.0 for each in verdict.distortion)
        accepted.add(expected.accepted)
    assert len(accepted) == 4


@pytest.mark.parametrize("law", TRUNCATION + COLLABORATIVE, ids=name_of)
def test_the_ledger_has_the_exact_distortion_of_every_emitted_token(law):
    checked = set()
    for world, seed in itertools.product(worlds(4), range(6)):
        prefix, sent = (), []
        for k in range(2):
            sent.append(world.proposal(prefix))
            prefix += (DraftField(seed, 0).draw(k, sent[-1]),)
        block = DraftBlock(prefix, (1.0,) * 2, proposal=pack(sent))
        verdict = verify(law, world.rows((), prefix), block, Noise(seed, 0))
        assert len(verdict.distortion) == len(verdict.tokens)
        for k, entry in enumerate(verdict.distortion):
            p, q = rows_at(world, prefix[:k])
            if k < 2:
                out = closed_forms.output(law, p, q)
            else:
                out = closed_forms.truncated(p, law) if law in TRUNCATION else p
            kept = out > EXACT
            assert entry.tv == pytest.approx(0.5 * float((out - p).abs().sum()), abs=EXACT)
            assert entry.overshoot == pytest.approx(float((out[kept] / p[kept]).max()), rel=1e-9)
            assert entry.kl == pytest.approx(
                float((out[kept] * (out[kept] / p[kept]).log()).sum()), abs=1e-10
            )
            checked.add(k)
        if verdict.accepted == 2 and law in COLLABORATIVE:
            assert verdict.distortion[-1] == NO_DISTORTION
    assert checked >= {0, 1}


EVERY = [
    *TRUNCATION,
    *COLLABORATIVE,
    *[parse(f"collaborative:{family}", {"max_distortion": 0.4}) for family in FAMILIES],
]


@pytest.mark.parametrize("law", EVERY, ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greedy_rows_leave_nothing_to_chance(law, dtype):
    rows = torch.nn.functional.one_hot(torch.tensor([2, 0, 1]), 4).to(dtype)
    spread = [SparseRow((0, 1, 2, 3), (0.25,) * 4)] * 2
    for tokens, accepted in [((2, 0), 2), ((2, 3), 1), ((1, 0), 0)]:
        for proposal in (None, pack(spread)):
            for seed in range(5):
                block = DraftBlock(tokens, (1.0,) * 2, proposal=proposal)
                verdict = verify(law, rows, block, Noise(seed, 0))
                assert verdict.tokens == (2, 0, 1)[: accepted + 1]
                assert [each.tv for each in verdict.distortion] == [0.0] * (accepted + 1)


@pytest.mark.parametrize("law", EVERY, ids=name_of)
def test_a_token_that_the_target_excludes_is_never_emitted(law):
    for world in worlds(4):
        if 0.0 not in world.target(()):
            continue
        out = next_law(emitted(world, law, 1)[1], (), 4)
        assert float(out[torch.tensor(world.target(())) == 0.0].sum()) == 0.0


@pytest.mark.parametrize("law", EVERY, ids=name_of)
def test_faults_are_typed_errors_and_parameters_are_checked_by_verify_too(law):
    rows = torch.full((2, 4), 0.25)
    with pytest.raises(ProposalError, match="gives no probability"):
        verify(law, rows, DraftBlock((1,), (1.0,), proposal=pack([SparseRow((0,), (1.0,))])), Noise(1, 0))
    with pytest.raises(ProposalError, match="got a tree"):
        verify(law, rows, DraftBlock((1,), (1.0,), (-1,)), Noise(1, 0))
    with pytest.raises(ValueError, match="has no parameter 'wish'"):
        verify(Law(law.name, (("wish", 1.0),)), rows, DraftBlock((1,), (1.0,)), Noise(1, 0))


@pytest.mark.parametrize("law", EVERY, ids=name_of)
@pytest.mark.parametrize("seed", range(3))
def test_large_peaked_rows_with_sparse_proposals_stay_finite(law, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5000, generator=generator) * 6
    rows = torch.softmax(logits, -1)
    sent = [truncate(torch.softmax(row * 1.3, -1)) for row in logits[:2]]
    for base in range(10):
        tokens = tuple(DraftField(seed, base).draw(k, row) for k, row in enumerate(sent))
        verdict = verify(law, rows, DraftBlock(tokens, (1.0,) * 2, proposal=pack(sent)), Noise(seed, base))
        for entry in verdict.distortion:
            assert 0.0 <= entry.tv <= 1.0
            assert 1.0 - 1e-9 <= entry.overshoot < math.inf
            assert 0.0 <= entry.kl < math.inf


def test_a_wrong_output_law_is_caught(monkeypatch):
    """Cactus' own acceptance, uncapped, where a ceiling was asked for: out / p runs far beyond it."""
    plain = output_laws.cap
    monkeypatch.setattr(
        output_laws, "cap", lambda position, t, scale, ceiling: plain(position, t, scale, 1e9)
    )
    law = parse("collaborative:cactus", {"delta": 0.5, "ceiling": 1.5})
    world = constant_world((0.9, 0.09, 0.01), (0.1, 0.2, 0.7))
    p, q = rows_at(world, ())
    out = next_law(emitted(world, law, 1)[1], (), 3)
    assert float((out / p).max()) > 5.0
    assert float((out - closed_forms.output(law, p, q)).abs().max()) > 0.01
