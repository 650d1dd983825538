"""The fault check in short: two laws, some seconds each. `make verify` runs it for minutes."""

import pytest

from cluster.checks.chaos import disturb
from cluster.checks.meddling import KINDS
from cluster.speculation.law import COUPLED, REJECTION
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec


@pytest.fixture(scope="module")
def spec(tiny_path):
    return VerifierSpec(model=str(tiny_path), threads=1)


@pytest.mark.parametrize("law", [COUPLED, REJECTION], ids=str)
def test_no_answer_fails_and_none_claims_more_than_it_can(spec, law):
    outcome = disturb(load_target(spec), spec, law, seconds=8.0, kill_every=3.0)
    print(outcome)
    assert outcome.faults == []
    assert outcome.answers >= 16
    assert outcome.kills >= 1
    # Or nothing was disturbed.
    assert outcome.meddled.keys() >= KINDS
    assert {"deadline", "stream-reset"} & outcome.lost.keys()
    if law == REJECTION:
        assert "unproven" in outcome.claims
        assert set(outcome.claims) <= {"unproven", "exact-law"}
    else:
        assert set(outcome.claims) == {"identical-tokens"}
