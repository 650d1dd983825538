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
