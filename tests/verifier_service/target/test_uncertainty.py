"""Tokens that another batch could have changed: every one that a change of logits can change is counted."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.speculation.law import COUPLED, NONE, REJECTION, Claim
from cluster.speculation.noise import Noise
from cluster.speculation.sampling import Sampling, target_probs
from tests.verifier_service.helpers import alone
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.target.uncertainty import logit_discrepancy, uncertain

VOCAB = 6
CORNERS = torch.tensor(list(product([-1.0, 1.0], repeat=VOCAB)), dtype=torch.float64)
samplings = st.sampled_from(
    [
        Sampling(temperature=0.0),
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(top_k=3),
        Sampling(min_p=0.2),
        Sampling(typical_p=0.5),
        Sampling(eta_cutoff=0.2),
    ]
)


def drawn(logits, sampling, noise):
    return noise.field.winner(noise.base, target_probs(logits, sampling)[0])


def flagged(logits, sampling, noise, error):
    logits = logits.float()
    probs = target_probs(logits, sampling)
    token = noise.field.winner(noise.base, probs[0])
    return uncertain(logits, probs, sampling, noise, [token], error)[0]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=VOCAB, max_size=VOCAB), samplings, st.integers(0, 999))
# One of three that can come in wins, and only if the two others do not come in before it.
@example([0.0, -0.0625, 0.0, 1.0, 0.125, 1.0], Sampling(top_k=3), 859)
def test_a_token_that_is_not_flagged_survives_every_change_of_that_size(values, sampling, seed):
    logits, noise, error = torch.tensor([values], dtype=torch.float32).double(), Noise(seed, 5), 0.1
    # Within the limits, since margins of exactly this size are rounded one way or the other.
    changed = {drawn(logits + 0.999 * error * corner, sampling, noise) for corner in CORNERS}
    if changed != {drawn(logits, sampling, noise)}:
        assert flagged(logits, sampling, noise, error)


def test_nucleus_edges_are_found_to_first_order():
    """Not all of them: tokens that come in, or fall out, together are not searched for."""
    generator = torch.Generator().manual_seed(1)
    sampling, error, changed, missed = Sampling(top_p=0.7), 0.1, 0, 0
    for seed in range(150):
        logits, noise = torch.randn(1, VOCAB, generator=generator).double(), Noise(seed, 5)
        tokens = {drawn(logits + 0.999 * error * corner, sampling, noise) for corner in CORNERS}
        if tokens != {drawn(logits, sampling, noise)}:
            changed += 1
            missed += not flagged(logits, sampling, noise, error)
    assert changed > 20
    assert missed <= 0.1 * changed


def test_flags_are_few_where_differences_are_small():
    torch.manual_seed(0)
    flags = [flagged(torch.randn(1, VOCAB), Sampling(), Noise(seed, 1), 1e-4) for seed in range(500)]
    assert not any(flags)
    flags = [flagged(torch.randn(1, VOCAB), Sampling(), Noise(seed, 1), 0.2) for seed in range(500)]
    assert 50 < sum(flags) < 250


def test_a_tie_and_an_edge_are_flagged():
    noise = Noise(1, 1)
    close = torch.tensor([[1.0, 1.00005, -3.0]])
    assert flagged(close, Sampling(temperature=0.0), noise, 1e-4)
    assert not flagged(close, Sampling(temperature=0.0), noise, 1e-5)
    # The second of two equals is cut away by top_k = 1, whatever the noise says.
    assert flagged(close, Sampling(top_k=1), noise, 1e-4)
    assert not flagged(close, Sampling(top_k=1), noise, 1e-5)


def test_where_rows_are_bitwise_the_same_there_is_no_discrepancy(loaded, monkeypatch):
    assert logit_discrepancy(loaded.model) == 0.0
    forward = loaded.model.forward

    def disturbed(batch):
        outcomes = zip(batch, forward(batch), strict=True)
        return [logits + (0.25 if len(rows.tokens) > 1 else 0.0) for rows, logits in outcomes]

    monkeypatch.setattr(loaded.model, "forward", disturbed)
    assert logit_discrepancy(loaded.model) == pytest.approx(0.25)


@pytest.mark.parametrize("law", [NONE, COUPLED, REJECTION], ids=str)
def test_an_answer_counts_its_uncertain_tokens(loaded, spec, request_for, law):
    def provenance(discrepancy, **fields):
        numerics = replace(loaded.numerics, row_invariant=False, logit_discrepancy=discrepancy)
        engine = build_engine(
            replace(loaded, numerics=numerics, **fields), spec, LocalDrafting(NgramDrafter()), NoOpTracer()
        )
        return alone(engine, request_for(law=law, temperature=1.0)).finished.provenance

    many, few, unknown = provenance(0.5), provenance(1e-9), provenance(0.0)
    assert {each.claim for each in (many, few, unknown)} == {Claim.EXACT_LAW}
    if law == REJECTION:
        assert many.uncertain_positions is None
        return
    assert 0 < many.uncertain_positions <= many.emitted_tokens
    assert few.uncertain_positions == 0
    assert unknown.uncertain_positions is None
    assert any(f"{many.uncertain_positions} of 40 tokens" in reason for reason in many.reasons)


def test_tokens_that_are_certain_by_their_bits_are_not_counted(engine_with, request_for):
    assert alone(engine_with(), request_for(law=NONE)).finished.provenance.uncertain_positions is None
