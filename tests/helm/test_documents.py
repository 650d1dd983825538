"""Every rendered document against the schema of its kind."""

import copy
import os

import jsonschema
import kubernetes_validate
import pytest
from ray.scripts.scripts import start

from tests.helm.chart import (
    EXAMPLE_NAMES,
    documents,
    pod_specs,
    ray_groups,
    ray_service,
    rendered_example,
    template,
)
from tests.helm.crd import BY_HAND, FOLDER, crd_schema

KUBERNETES = ("1.31", kubernetes_validate.latest_version())
BUILT_IN = ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1")
# Kinds of others, whose required fields are few.
OTHERS = {
    ("cert-manager.io/v1", "Issuer"): set(),
    ("cert-manager.io/v1", "Certificate"): {"secretName", "issuerRef"},
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {"parentRefs", "rules"},
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): {"parentRefs", "rules"},
    ("monitoring.coreos.com/v1", "PodMonitor"): {"selector", "podMetricsEndpoints"},
    ("monitoring.coreos.com/v1alpha1", "ScrapeConfig"): {"staticConfigs", "metricsPath"},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"groups"},
    ("ray.io/v1", "RayService"): {"serveConfigV2", "rayClusterConfig"},
}


def texts():
    """The examples, and one rendering with what none of them has."""
    for name in EXAMPLE_NAMES:
        yield rendered_example(name)
    yield template(
        "cpu",
        "config.drafter.mode=local",
        "drafters=null",
        "gateway.onHead=false",
        "model.image.reference=registry.example/weights:1",
        "config.model=/models/tiny",
        "upgrade.strategy=NewClusterWithIncrementalUpgrade",
        "upgrade.gatewayClassName=istio",
        "verifiers.cpu.image.digest=sha256:" + "0" * 64,
        "head.pod.podAnnotations.a=b",
    ).stdout


TEXTS = list(texts())


@pytest.mark.parametrize("version", KUBERNETES)
def test_built_in_kinds(version):
    kinds = set()
    for text in TEXTS:
        for document in documents(text):
            if document["apiVersion"] in BUILT_IN:
                kubernetes_validate.validate(document, version, strict=True)
                kinds.add(document["kind"])
    assert {"Pod", "ConfigMap", "Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget"} <= kinds


@pytest.mark.parametrize("version", KUBERNETES)
def test_pods_inside_ray(version):
    for text in TEXTS:
        for name, spec in pod_specs(text):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            kubernetes_validate.validate(pod, version, strict=True)


def test_the_validator_sees_a_misspelt_field():
    [(name, spec), *_] = pod_specs(TEXTS[0])
    wrong = copy.deepcopy(spec)
    wrong["containers"][0]["resource"] = {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": wrong}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES[0], strict=True)


def test_every_other_kind_is_known_here():
    for text in TEXTS:
        for document in documents(text):
            if document["apiVersion"] not in BUILT_IN:
                assert OTHERS[document["apiVersion"], document["kind"]] <= set(document["spec"])


def test_ray_service_by_hand():
    for text in TEXTS:
        jsonschema.validate(ray_service(text), BY_HAND)


@pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder with KubeRay's CRDs")
def test_ray_service_by_kuberays_own_definition():
    schema = crd_schema()
    # Of metadata a CRD says nothing but that it is an object.
    validator = jsonschema.Draft202012Validator(schema)
    for text in TEXTS:
        service = ray_service(text)
        assert list(validator.iter_errors(service)) == []
    spoilt = copy.deepcopy(ray_service(TEXTS[0]))
    spoilt["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParam"] = {}
    assert [error.validator for error in validator.iter_errors(spoilt)] == ["additionalProperties"]


def test_ray_start_knows_every_parameter():
    options = {option.removeprefix("--") for param in start.params for option in param.opts}
    for text in TEXTS:
        for group in ray_groups(ray_service(text)).values():
            assert set(group["rayStartParams"]) <= options
