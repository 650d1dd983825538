"""The cost table: closed forms at the edges, and the published capacity of drafting apart."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from cluster.bench.economy.costs import Economy, break_even, over_round_trips, ways
from cluster.cli import app

GIVEN = Economy(
    block=5,
    acceptance=0.8,
    draft_ms=2.0,
    own_draft_ms=1.5,
    verify_ms=30.0,
    plain_ms=25.0,
    round_trip_ms=1.0,
    batch=32,
    draft_batch=16,
    verifier_price=4.0,
    drafter_price=0.8,
)


def test_tokens_a_round_are_the_geometric_sum():
    assert GIVEN.acceptance_length == pytest.approx((1 - 0.8**6) / 0.2)
    assert replace(GIVEN, acceptance=1.0).acceptance_length == 6
    assert replace(GIVEN, acceptance=0.0).acceptance_length == 1


def test_drafting_apart_serves_as_many_more_clients_as_published():
    """1 + k t_d / t_v times those of a co-located system (arXiv 2606.25091)."""
    _, same, apart = ways(GIVEN)
    assert apart.total / same.total == pytest.approx(1 + 5 * 1.5 / 30)
    assert pytest.approx(32 * 5 * 2.0 / (30 * 16)) == GIVEN.drafters
    assert GIVEN.groups == 2
    assert replace(GIVEN, round_trip_ms=60.0).groups == 4


def test_at_the_break_even_price_both_cost_the_same():
    price = break_even(GIVEN)
    alone, same, apart = ways(replace(GIVEN, drafter_price=price))
    assert apart.million == pytest.approx(min(alone.million, same.million))
    # A drafter that is always wrong never pays.
    assert break_even(replace(GIVEN, acceptance=0.0)) == 0.0


def test_a_lone_request_gains_until_the_round_trip_eats_it_up():
    """S = tau T_1 / (T_d + R + T_v); worth it iff R < tau T_1 - T_d - T_v."""
    limit = GIVEN.acceptance_length * 25 - 10 - 30
    speeds = dict(over_round_trips(GIVEN, [0.0, limit, 2 * limit]))
    assert speeds[0.0] > 1 > speeds[2 * limit]
    assert speeds[limit] == pytest.approx(1.0)


def test_the_command_prints_a_table_draws_a_picture_and_names_what_is_wrong(tmp_path):
    run = CliRunner().invoke
    picture = tmp_path / "plan.svg"
    result = run(app, ["plan", "--acceptance", "0.8", "--picture", str(picture), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["ways"][0]["name"] == "verifier alone"
    assert picture.read_text().startswith("<?xml")
    assert "drafters apart" in run(app, ["plan"]).stdout
    wrong = run(app, ["plan", "--acceptance", "1.5"])
    assert wrong.exit_code == 2
    assert "acceptance must be in [0, 1], got 1.5" in wrong.output
