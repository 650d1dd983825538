"""The check of distributions itself, on a tiny model: honest laws pass, every planted fault is noticed."""

import json

import pytest

from cluster.checks import distribution
from cluster.checks.continuations import Known, Scenario, look
from cluster.checks.distribution import ALPHA, SCENARIOS, Finding, findings, sample
from cluster.checks.goodness import Fit
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

DRAWS = 1_000
PROMPT = (40, 41, 42)


@pytest.fixture(scope="module")
def known(tiny_path) -> Known:
    target = load_target(VerifierSpec(model=str(tiny_path), threads=1)).model
    every = look(target, PROMPT, DRAWS)
    # Random weights are nearly indifferent; sharper rows leave χ² something to see in few draws.
    return Known(every.prompt, {prefix: 4.0 * logits for prefix, logits in every.logits.items()})


@pytest.fixture(scope="module")
def judged(known) -> dict[Scenario, Finding]:
    fits = {scenario: sample(known, scenario, DRAWS, DRAWS * k) for k, scenario in enumerate(SCENARIOS)}
    return {finding.scenario: finding for finding in findings(fits)}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.key)
def test_honest_laws_pass_and_faults_do_not(judged, scenario):
    finding = judged[scenario]
    assert finding.fit.bins > 10
    assert (finding.adjusted < ALPHA) == bool(scenario.fault)
    assert finding.as_expected


def test_every_strict_law_is_tested_with_drafts_that_differ():
    honest = {(scenario.law, scenario.drafter) for scenario in SCENARIOS if not scenario.fault}
    assert {law for law, t in honest if t != 1.0} == {law for law, t in honest if t == 1.0}
    assert {law for law, _ in honest} == {"coupled", "rejection", "block"}


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Scenarios judged without a model; p_values can be set."""
    p_values = {scenario: 0.0 if scenario.fault else 0.5 for scenario in SCENARIOS}
    checked = []

    class Checker:
        def __init__(self, model, draws):
            self.draws = draws

        def check(self, scenario):
            checked.append(scenario.key)
            return Fit(self.draws, 10, 1.0, p_values[scenario], 0.0)

    monkeypatch.setattr(distribution, "Checker", Checker)
    return tmp_path / "distribution.jsonl", p_values, checked


def test_all_as_expected(stand_in, capsys):
    out, _, _ = stand_in
    assert distribution.main(["--out", str(out)]) == 0
    assert f"{len(SCENARIOS)} of {len(SCENARIOS)} tested" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [SCENARIOS[0], SCENARIOS[-1]], ids=lambda scenario: scenario.key)
def test_a_false_rejection_and_a_missed_fault_fail_the_run(stand_in, capsys, wrong):
    out, p_values, _ = stand_in
    p_values[wrong] = 0.5 if wrong.fault else 0.0
    assert distribution.main(["--out", str(out)]) == 1
    assert "WHICH IS WRONG" in capsys.readouterr().out


def test_a_stopped_run_goes_on_where_it_was(stand_in):
    out, _, checked = stand_in
    distribution.main(["--out", str(out)])
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:2]) + "\n")
    checked.clear()
    distribution.main(["--out", str(out)])
    assert checked == [json.loads(line)["scenario"] for line in lines[2:]]


def test_results_of_another_size_are_not_taken_for_these(stand_in):
    out, _, checked = stand_in
    distribution.main(["--out", str(out)])
    checked.clear()
    distribution.main(["--out", str(out), "--draws", "7"])
    assert len(checked) == len(SCENARIOS)
