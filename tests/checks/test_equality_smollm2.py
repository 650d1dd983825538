"""A sample of the long equality check (`make equality`) on the real model."""

import pytest

from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.checks.equality import Case, Checker

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

EDIT, JSON, HAIKU, COUNT = 4, 10, 11, 15

SAMPLE = [
    Case("transformers", 0, ((EDIT, 0.0),)),
    Case("ngram", 4, ((COUNT, 1.0),)),
    Case("causal_lm", 4, ((HAIKU, 0.7),)),
    Case("ngram", 16, ((EDIT, 0.0), (JSON, 0.7), (HAIKU, 1.5), (COUNT, 1.0))),
]


@pytest.fixture(scope="module")
def checker():
    return Checker(DEFAULT_REFERENCE, {})


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.key)
def test_speculation_changes_no_token(checker, case):
    assert checker.check(case) == []


def test_another_seed_is_noticed(checker):
    prompt, temperature = HAIKU, 1.0
    checker.references[f"{prompt}@{temperature:g}"] = [*checker.reference(prompt, temperature)[:-1], 0]
    [sentence] = checker.check(Case("ngram", 4, ((prompt, temperature),)))
    assert "margin" in sentence
