"""The lattice of claims, round by round."""

from itertools import product

import pytest

from cluster.speculation.catalogue import LAWS
from cluster.speculation.claim import round_claim
from cluster.speculation.law import Claim, Law

FACTS = list(product([True, False], repeat=3))


@pytest.mark.parametrize("name", LAWS)
def test_more_doubt_never_makes_a_stronger_claim(name):
    def claim(row_invariant, unproven_loss, distorted):
        return round_claim(
            Law(name), row_invariant=row_invariant, unproven_loss=unproven_loss, distorted=distorted
        )

    for invariant, lost, distorted in FACTS:
        made = claim(invariant, lost, distorted)
        assert claim(False, lost, distorted) <= made
        assert claim(invariant, True, distorted) <= made
        assert claim(invariant, lost, True) is Claim.LOSSY
        assert made.lossless is (made >= Claim.EXACT_LAW)


def test_only_noise_that_decides_alone_gives_identical_tokens():
    strongest = {
        name: round_claim(Law(name), row_invariant=True, unproven_loss=False, distorted=False)
        for name in LAWS
    }
    identical = {name for name, claim in strongest.items() if claim is Claim.IDENTICAL_TOKENS}
    assert identical == {"none", "coupled"}
    assert set(strongest.values()) == {Claim.IDENTICAL_TOKENS, Claim.EXACT_LAW}


def test_a_lost_block_matters_under_laws_that_draw_from_it():
    claims = {
        name: round_claim(Law(name), row_invariant=True, unproven_loss=True, distorted=False)
        for name in ("none", "coupled", "rejection", "block")
    }
    assert claims == {
        "none": Claim.IDENTICAL_TOKENS,
        "coupled": Claim.IDENTICAL_TOKENS,
        "rejection": Claim.UNPROVEN,
        "block": Claim.UNPROVEN,
    }
