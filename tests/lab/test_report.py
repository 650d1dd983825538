"""`truedraft lab` as a command."""

import json

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.lab import report, table
from cluster.lab.rules import RULES, Rule


@pytest.fixture
def two_rules(monkeypatch):
    """One rule that is exact and one that is biased: the whole table is computed in test_rules.py."""
    kept = tuple(r for r in RULES if r.name in ("fixed block", "drop a token whose own q is low"))
    monkeypatch.setattr(report, "RULES", kept)
    monkeypatch.setattr(report, "BUDGETS", ())
    monkeypatch.setattr(table, "_SEEDS", range(3))


def test_json_has_every_cell(two_rules):
    result = CliRunner().invoke(app, ["lab", "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {(c["rule"], c["law"]) for c in found["cells"]} == {
        (r.name, law) for r in report.RULES for law in ("coupled", "rejection", "block")
    }
    assert all(c["as_expected"] for c in found["cells"])
    assert {each["law"] for each in found["lossy"]} >= {"collaborative:mentored"}


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_picture_is_drawn_and_the_table_printed(two_rules, tmp_path, ending):
    path = tmp_path / "pictures" / f"laws{ending}"
    result = CliRunner().invoke(app, ["lab", "--picture", str(path)])
    assert result.exit_code == 0
    assert "fixed block" in result.stdout
    assert "exact" in result.stdout
    content = path.read_bytes()
    assert (
        content.startswith(b"\x89PNG") if ending == ".png" else b"drop a token whose own q is low" in content
    )


def test_an_ending_that_is_no_picture_is_refused(two_rules, tmp_path):
    result = CliRunner().invoke(app, ["lab", "--json", "--picture", str(tmp_path / "laws.wish")])
    assert result.exit_code == 2
    assert "wish" in json.loads(result.stdout)["error"]["message"]


def test_a_rule_that_is_not_as_expected_fails_the_command(two_rules, monkeypatch):
    honest = report.RULES[0]
    monkeypatch.setattr(report, "RULES", (Rule(honest.name, honest.kind, honest.play, ("block",)),))
    result = CliRunner().invoke(app, ["lab"])
    assert result.exit_code == 1
    assert "not as expected" in result.stdout
