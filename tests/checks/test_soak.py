"""The soak in short. `make soak` takes half an hour over a real model."""

import pytest

from cluster.checks import soak as soaking
from cluster.checks.soak import FLAT, Outcome, soak
from cluster.speculation.catalogue import LAWS
from verifier_service.build import load_target
from verifier_service.engine.composing import compose
from verifier_service.spec import VerifierSpec


@pytest.fixture(scope="module")
def spec(tiny_path):
    return VerifierSpec(model=str(tiny_path), threads=1, kv_tokens=512, max_active=16)


def soaked(spec, seconds):
    return soak(load_target(spec), spec, seconds, longest=400, answers=60, concurrent=40)


def test_nothing_fails_and_tokens_stay_the_same(spec):
    outcome = soaked(spec, 15.0)
    print(outcome)
    # Minutes are needed to tell growth from the beginning.
    assert [each for each in outcome.faults if not each.startswith("memory grew")] == []
    assert set(outcome.finished) == set(LAWS)
    assert outcome.compared > 50
    assert outcome.cancelled > 5
    assert outcome.invalid > 5
    assert outcome.preemptions > 0
    assert outcome.prompt_tokens.keys() >= {"cached", "computed"}


def test_a_wrong_token_is_found(spec, monkeypatch):
    """A step that now and then computes a prompt's last page one token short."""
    broken = []

    def wrong(*args):
        batch = compose(*args)
        for _, rows in batch:
            if rows.wanted == 1 and len(rows.tokens) > 20 and len(broken) < 10:
                rows.tokens[0] ^= 1
                broken.append(rows)
        return batch

    monkeypatch.setattr("verifier_service.engine.engine.compose", wrong)
    # What the answers are compared with is right.
    compare = soaking._compare

    def right(*args):
        monkeypatch.setattr("verifier_service.engine.engine.compose", compose)
        compare(*args)

    monkeypatch.setattr(soaking, "_compare", right)
    assert any("not that of plain decoding" in each for each in soaked(spec, 8.0).faults)


def test_memory_that_grows_is_told():
    flat = Outcome(memory=[100, 103, 101, 102, 100, 101, 102, 101])
    growing = Outcome(memory=[100 + k for k in range(20)])
    assert flat.growth < FLAT < growing.growth
