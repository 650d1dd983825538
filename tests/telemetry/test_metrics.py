"""Metrics of several processes in one text, and names that docs/metrics.md lists."""

from pathlib import Path

import pytest

from cluster.telemetry import instruments
from cluster.telemetry.labels import Domains
from cluster.telemetry.metrics import exposition, start_metrics


def test_families_of_several_processes_stand_under_one_heading():
    processes = []
    for replica in ("a", "b"):
        metrics = start_metrics("truedraft-verifier", replica)
        metrics.meter.create_counter("truedraft.rounds").add(3, {"law": "coupled"})
        processes.append(metrics.families())
    lines = exposition(processes).decode().splitlines()
    assert [line for line in lines if line.startswith("# TYPE truedraft")] == [
        "# TYPE truedraft_rounds_total counter"
    ]
    series = [line for line in lines if line.startswith("truedraft_rounds_total{")]
    assert len(series) == 2
    assert all('law="coupled"' in line and line.endswith(" 3.0") for line in series)
    assert {"a", "b"} == {line.partition('service_instance_id="')[2][0] for line in series}


def test_metrics_of_one_replica_know_nothing_of_anothers():
    first, second = start_metrics("truedraft-verifier", "a"), start_metrics("truedraft-verifier", "b")
    first.meter.create_counter("truedraft.rounds").add(1)
    assert "rounds" not in exposition([second.families()]).decode()


def test_every_name_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = [value for key, value in vars(instruments).items() if key.isupper() and isinstance(value, str)]
    assert [name for name in names if f"`{name}" not in page] == []


@pytest.mark.parametrize(
    ("domain", "label"), [("coding", "coding"), ("", "other"), ("Coding", "other"), ("x", "other")]
)
def test_domains_that_are_not_listed_are_one(domain, label):
    assert Domains(["coding"]).label(domain) == label
