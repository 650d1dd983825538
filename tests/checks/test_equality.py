"""The equality check itself: what it covers, that it resumes, and that it would notice a difference."""

import json

import pytest

from cluster.bench.prompts import VARIED
from cluster.checks import equality


def test_every_combination_is_covered_alone_and_in_a_batch():
    wanted = {
        (drafter, k, prompt, t)
        for drafter in equality.DRAFTERS
        for k in equality.BLOCK_LENGTHS
        for prompt in range(len(VARIED))
        for t in equality.TEMPERATURES
    }
    cases = [case for case in equality.cases() if case.drafter != "transformers"]
    for size in (1, equality.BATCH):
        chosen = (case for case in cases if len(case.requests) == size)
        covered = {(case.drafter, case.block_length, *r) for case in chosen for r in case.requests}
        assert covered == wanted
    batches = [case for case in cases if len(case.requests) > 1]
    assert all(len({t for _, t in case.requests}) > 1 for case in batches), "not mixed"
    assert len(VARIED) == 20


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Three cases answered by a stand-in for the model; the second differs."""
    cases = [equality.Case("ngram", 4, ((prompt, 0.0),)) for prompt in range(3)]
    checked = []

    class Checker:
        def __init__(self, model, known):
            self.references = known

        def check(self, case):
            checked.append(case.key)
            [(prompt, _)] = case.requests
            self.references[f"{prompt}@0"] = [prompt]
            return ["planted"] if prompt == 1 else []

    monkeypatch.setattr(equality, "cases", lambda: iter(cases))
    monkeypatch.setattr(equality, "Checker", Checker)
    return tmp_path / "equality.jsonl", checked


def test_a_difference_is_printed_and_fails_the_run(few, capsys):
    out, checked = few
    assert equality.main(["--out", str(out)]) == 1
    assert len(checked) == 3
    printed = capsys.readouterr().out
    assert "DIFFERENT planted" in printed
    assert "3 of 3 cases, 3 answers compared, 1 differ" in printed


def test_a_stopped_run_goes_on_where_it_was(few):
    out, checked = few
    equality.main(["--out", str(out)])
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:2]) + "\n")
    checked.clear()
    assert equality.main(["--out", str(out)]) == 1, "the difference found before the stop is forgotten"
    assert checked == [json.loads(lines[2])["case"]]
