"""What an answer says of itself follows from its counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, STRICT_LAWS, Claim
from cluster.speculation.provenance import Numerics, Provenance

EMPTY = Provenance(COUPLED, COUPLED, Claim.EXACT_LAW, Numerics("w", "float32", "k", 1, True), seed=7)
counts = st.integers(0, 10**6)


@given(counts, counts, counts, st.integers(1, 10**6))
def test_emitted_tokens_are_accepted_corrections_and_bonuses(accepted, corrections, bonuses, rounds):
    provenance = replace(
        EMPTY, accepted_tokens=accepted, correction_tokens=corrections, bonus_tokens=bonuses, rounds=rounds
    )
    assert provenance.emitted_tokens == accepted + corrections + bonuses
    assert provenance.acceptance_length == pytest.approx((accepted + corrections + bonuses) / rounds)


def test_an_answer_without_rounds_has_no_acceptance_length():
    assert EMPTY.acceptance_length == 0.0


@given(st.dictionaries(st.sampled_from(["deadline", "stream-reset", "no-drafter"]), counts))
def test_fallback_rounds_are_summed_over_their_reasons(fallbacks):
    assert replace(EMPTY, fallbacks=fallbacks).fallback_rounds == sum(fallbacks.values())


def test_two_answers_do_not_share_their_fallbacks():
    other = replace(EMPTY, fallbacks={"deadline": 1})
    assert EMPTY.fallbacks == {}
    assert other.fallbacks == {"deadline": 1}


def test_claims_are_ordered_from_weakest_to_strongest_and_labelled():
    assert [claim.label for claim in sorted(Claim)] == ["lossy", "unproven", "exact-law", "identical-tokens"]


def test_laws_are_known_by_their_names():
    assert tuple(STRICT_LAWS.values()) == (NONE, COUPLED, REJECTION, BLOCK)
    assert all(LAWS[name].lossless for name in STRICT_LAWS)
    assert str(COUPLED) == "coupled"
