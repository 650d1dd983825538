"""The cost of a step: that what is timed is what it says, on a tiny model and on random logits."""

import json
from io import StringIO

import pytest
from rich.console import Console

from cluster.bench.step import run as step_run
from cluster.bench.step.alone import Alone
from cluster.bench.step.parts import Workload, spent, texts, without_model
from cluster.bench.step.run import Shape, as_json, measured, render
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.terminal import Output
from verifier_service.build import load_target
from verifier_service.spec import VerifierSpec

LAWS = [COUPLED, REJECTION, BLOCK]


@pytest.fixture(scope="module")
def path(tiny_path):
    return str(tiny_path)


def test_the_target_drafts_so_that_nearly_all_rows_are_walked(path):
    loaded = load_target(VerifierSpec(model=path, threads=1))
    stretches = texts(loaded, 3, 20)
    assert [len(text) for text in stretches] == [20, 20, 20]
    assert len({tuple(text) for text in stretches}) == 3
    workload = Workload(loaded.model, stretches, 5)
    coupled, rejection, block = (workload.measure(law, 1) for law in LAWS)
    # The noise that drafted decides, on rows that are the same alone and in a block.
    assert coupled.accepted == 3 * 4
    assert 0 < rejection.accepted <= 3 * 4
    assert 0 < block.accepted <= 3 * 4
    for each in (coupled, rejection, block):
        assert each.forward > 0.0
        assert 0.0 < each.noise < each.verification
        assert each.deciding == each.transforms + each.verification


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_without_a_model_nothing_is_loaded(law, monkeypatch):
    monkeypatch.setattr(step_run, "load_target", None)
    report = measured("no such model", Shape(2, 3, 700, 16, 1), [law])
    [parts] = report.parts
    assert parts.forward == 0.0
    assert parts.accepted <= 4
    assert without_model(COUPLED, 2, 3, 700, 1).accepted == 4
    out = StringIO()
    render(report, Console(file=out, width=120))
    assert "random logits of 700" in out.getvalue()


def test_seconds_are_those_of_the_function_that_is_named():
    def inner():
        return sum(range(20_000))

    def outer():
        inner()
        sum(range(200))

    found = spent(outer, {"inner": inner, "outer": outer, "never": spent})
    assert 0.0 < found["inner"] < found["outer"]
    assert found["never"] == 0.0


def test_the_whole_report(path):
    report = measured(path, Shape(2, 3, None, 20, 1), LAWS)
    assert len(report.parts) == len(report.around) == 3
    assert all(each.bookkeeping > 0.0 and each.audit > 0.0 for each in report.around)
    assert report.limit > 0.0
    assert report.weights > report.keys_and_values > 0
    assert report.alone.block_over_row.median > 0.0 < report.alone.row_over_reading.median
    out = StringIO()
    render(report, Console(file=out, width=160))
    assert "3 rows over 1: " in out.getvalue()
    assert all(word in out.getvalue() for word in ("forward", "bookkeeping", "Limit", "rejection"))
    assert json.loads(json.dumps(as_json(report)))["limit"] == report.limit


def test_a_law_that_is_not_measured_is_refused():
    with pytest.raises(ValueError, match="law must be one of coupled, rejection, block, got 'none'"):
        step_run.run_step(None, Shape(1, 1, 10, 16, 1), ["none"], Output(True))


def test_whether_a_block_costs_little_is_told_from_pairs():
    single = Alone(9, one=(1.0,) * 9, block=(1.2,) * 9, reading=(0.3,) * 9)
    assert single.block_over_row.at_most(1.4) == "met"
    assert single.row_over_reading.at_most(2.5) == "missed"
