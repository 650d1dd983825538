"""Rules and dashboard of the chart reach Prometheus and Grafana as they are."""

import json

import yaml

from tests.helm.chart import chart_file, documents, template

RULES, DASHBOARD = chart_file("files", "prometheus-rules.yaml"), chart_file("files", "grafana-dashboard.json")


def made(kind, name, *settings):
    found = [each for each in documents(template("cpu", *settings).stdout) if each["kind"] == kind]
    [one] = [each for each in found if each["metadata"]["name"] == name]
    return one


def test_rules():
    setting = "monitoring.prometheusRule.enabled=true"
    rule = made("PrometheusRule", "truedraft", setting, "monitoring.prometheusRule.labels.release=prometheus")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_dashboard():
    setting = "monitoring.dashboard.enabled=true"
    config = made("ConfigMap", "truedraft-dashboard", setting)
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["truedraft.json"]) == json.loads(DASHBOARD.read_text())


def test_metrics_are_asked_of_one_target():
    scrape = made("ScrapeConfig", "truedraft", "monitoring.scrapeConfig.enabled=true")
    # Whichever gateway answers speaks for all: several targets would count everything several times.
    assert scrape["spec"]["staticConfigs"] == [{"targets": ["truedraft-serve-svc.truedraft.svc:8000"]}]
