"""The collector's configuration, the dashboard and the alert rules. Expressions are read in tests/helm."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from cluster.telemetry import names

FILES = Path(__file__).parents[2] / "helm" / "truedraft" / "files"


def rules():
    groups = yaml.safe_load((FILES / "prometheus-rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard():
    return json.loads((FILES / "grafana-dashboard.json").read_text())


@pytest.mark.parametrize(
    "name",
    [
        "TruedraftLossyShare",
        "TruedraftAuditAlarm",
        "TruedraftReplayFault",
        "TruedraftBelowBreakEven",
        "TruedraftDrafterPoolDown",
    ],
)
def test_what_must_be_told_has_an_alert(name):
    [rule] = [rule for rule in rules() if rule.get("alert") == name]
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_panels_are_apart_and_ask_the_chosen_source():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())} == {
        "${datasource}"
    }


def test_the_collectors_pipelines_are_made_of_what_is_configured():
    config = yaml.safe_load((FILES / "otel-collector.yaml").read_text())
    pipelines = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert {part for pipeline in pipelines for part in pipeline[kind]} == set(config[kind])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    # The processor that may refuse data comes first, the one that gathers it last.
    for pipeline in pipelines:
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"


def test_the_collector_keeps_traces_by_attributes_that_spans_have():
    config = yaml.safe_load((FILES / "otel-collector.yaml").read_text())
    keys = [
        policy[policy["type"]]["key"]
        for policy in config["processors"]["tail_sampling"]["policies"]
        if policy["type"].endswith("_attribute")
    ]
    assert set(keys) <= {value for value in vars(names).values() if isinstance(value, str)}
    assert names.LOSSLESS in keys
