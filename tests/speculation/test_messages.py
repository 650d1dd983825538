import itertools

from hypothesis import given
from hypothesis import strategies as st

from cluster.speculation.law import COUPLED, Claim
from cluster.speculation.messages import PrefixHash
from cluster.speculation.provenance import Numerics, Provenance


def test_a_prefix_hash_depends_on_the_tokens_and_not_on_how_they_came():
    whole = PrefixHash([1, 2, 3, 70_000])
    grown = PrefixHash([1])
    grown.extend([2, 3])
    grown.digest()
    grown.extend([70_000])
    assert (grown.digest(), grown.length) == (whole.digest(), 4)
    # The bytes 1, 2 and 258 must not be confused.
    assert PrefixHash([1, 2]).digest() != PrefixHash([2, 1]).digest() != PrefixHash([258]).digest()


def test_a_claim_is_the_weakest_of_its_rounds():
    assert min(Claim.IDENTICAL_TOKENS, Claim.UNPROVEN, Claim.EXACT_LAW) is Claim.UNPROVEN
    assert [claim.lossless for claim in Claim] == [False, False, True, True]
    assert Claim.IDENTICAL_TOKENS.label == "identical-tokens"


def test_provenance_counts():
    numerics = Numerics("w", "float32", "k", 2, True)
    provenance = Provenance(COUPLED, COUPLED, Claim.EXACT_LAW, numerics, 1)
    assert provenance.acceptance_length == 0.0
    provenance = Provenance(
        COUPLED, COUPLED, Claim.EXACT_LAW, numerics, 1, rounds=4, draft_tokens=9, accepted_tokens=5,
        correction_tokens=1, bonus_tokens=2, fallbacks={"deadline": 1, "no-drafter": 2},
    )  # fmt: skip
    assert (provenance.emitted_tokens, provenance.acceptance_length, provenance.fallback_rounds) == (
        8,
        2.0,
        3,
    )


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_prefix_hash_is_the_same_however_the_tokens_are_split(tokens, cuts):
    grown = PrefixHash()
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    for start, end in itertools.pairwise(edges):
        grown.extend(tokens[start:end])
    assert grown.digest() == PrefixHash(tokens).digest()
    assert len(grown.digest()) == 16


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_prefix_hashes_are_equal_only_for_equal_tokens(left, right):
    assert (PrefixHash(left).digest() == PrefixHash(right).digest()) == (left == right)
