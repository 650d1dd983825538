"""Rules and dashboard of the chart reach Prometheus and Grafana as they are, and ask for what there is."""

import json

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.helm.chart import chart_file, documents, template
from tests.helm.promql import catalogue, documented, faults, recorded, rule_faults

RULES, DASHBOARD = chart_file("files", "prometheus-rules.yaml"), chart_file("files", "grafana-dashboard.json")


def made(kind, name, *settings):
    found = [each for each in documents(template("cpu", *settings).stdout) if each["kind"] == kind]
    [one] = [each for each in found if each["metadata"]["name"] == name]
    return one


@pytest.fixture(scope="module")
def rule():
    labels = "monitoring.prometheusRule.labels.release=prometheus"
    return made("PrometheusRule", "truedraft", "monitoring.prometheusRule.enabled=true", labels)


@pytest.fixture(scope="module")
def rules(rule):
    return [each for group in rule["spec"]["groups"] for each in group["rules"]]


@pytest.fixture(scope="module")
def known(rules):
    return recorded(rules, catalogue())


@pytest.fixture(scope="module")
def dashboard():
    config = made("ConfigMap", "truedraft-dashboard", "monitoring.dashboard.enabled=true")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    return json.loads(config["data"]["truedraft.json"])


def test_rules_are_those_of_the_file(rule):
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_catalogue_is_that_of_the_code():
    named, defined = documented()
    assert named == defined


def test_every_rule_is_one_for_prometheus_over_metrics_that_exist(rule, rules, known):
    assert [(each, fault) for each in rules for fault in rule_faults(each, known)] == []
    names = [each.get("alert") or each["record"] for each in rules]
    assert len(set(names)) == len(names)
    groups = [group["name"] for group in rule["spec"]["groups"]]
    assert len(set(groups)) == len(groups)


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"expr": "sum(rate(truedraft_round_total[5m])) > 0"}, "no series truedraft_round_total"),
        ({"expr": "sum(rate(truedraft_rounds[5m])) > 0"}, "no series truedraft_rounds"),
        ({"expr": 'sum(rate(truedraft_rounds_total{laws="none"}[5m])) > 0'}, "has no label laws"),
        ({"expr": "sum by (model) (rate(truedraft_rounds_total[5m])) > 0"}, "which have no label model"),
        ({"expr": "truedraft_rounds_total > 0"}, "looked at without a rate"),
        ({"expr": "rate(truedraft_break_even[5m]) > 0"}, "which does not count"),
        ({"annotations": {"summary": "{{ $labels.pod }}"}}, "an annotation names pod"),
        ({"for": "15 minutes"}, "is no duration"),
        ({"severity": "warning"}, "severity is no field"),
        ({"alert": "low acceptance"}, "is no name"),
    ],
)
def test_a_spoilt_rule_is_found(rules, known, spoilt, words):
    [sound] = [each for each in rules if each.get("alert") == "TruedraftBelowBreakEven"]
    assert any(words in fault for fault in rule_faults(sound | spoilt, known))


def test_what_is_no_expression_is_found(known):
    with pytest.raises(ValueError, match=r"\S"):
        list(faults("sum by (law (truedraft_rounds_total)", known))


def test_the_dashboard_is_that_of_the_file_and_asks_for_metrics_that_exist(dashboard, known):
    assert dashboard == json.loads(DASHBOARD.read_text())
    asked = [(panel["title"], target) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 10
    for title, target in asked:
        expression = target["expr"].replace("$__rate_interval", "5m").replace("$domain", ".*")
        assert list(faults(expression, known)) == [], title
    [variable] = [each for each in dashboard["templating"]["list"] if each["type"] == "query"]
    name, label = variable["query"].removeprefix("label_values(").removesuffix(")").split(", ")
    assert label in known[name].labels


def lost(given, read, where=""):
    """Paths of what a model did not take up."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key not in read:
                yield f"{where}.{key}"
            else:
                yield from lost(value, read[key], f"{where}.{key}")
    elif isinstance(given, list):
        assert len(given) == len(read)
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif given != read:
        yield where


def through_grafana(dashboard):
    return json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(dashboard)))


def test_grafanas_own_model_takes_up_all_of_the_dashboard(dashboard):
    assert list(lost(dashboard, through_grafana(dashboard))) == []
    spoilt = json.loads(json.dumps(dashboard))
    spoilt["panels"][1]["gridpos"] = spoilt["panels"][1].pop("gridPos")
    assert list(lost(spoilt, through_grafana(spoilt))) == [".panels[1].gridpos"]


def test_metrics_are_asked_of_one_target():
    scrape = made("ScrapeConfig", "truedraft", "monitoring.scrapeConfig.enabled=true")
    # Whichever gateway answers speaks for all: several targets would count everything several times.
    assert scrape["spec"]["staticConfigs"] == [{"targets": ["truedraft-serve-svc.truedraft.svc:8000"]}]
    assert "authorization" not in scrape["spec"]
