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
from tests.helm.others import OTHERS

KUBERNETES = ("1.31", kubernetes_validate.latest_version())
BUILT_IN = ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1")


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
    yield template(
        "cpu",
        "model.pvc.claimName=weights",
        "model.pvc.subPath=tiny",
        "config.model=/models/tiny",
        "apiKeys.existingSecret=tenants",
        "config.gateway.anonymous=false",
        "test.apiKey.existingSecret=operator",
        "rayAuth.existingSecret=ray",
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


def test_kinds_of_other_projects():
    kinds = set()
    for text in TEXTS:
        for document in documents(text):
            named = document["apiVersion"], document["kind"]
            if named[0] not in BUILT_IN and named[1] != "RayService":
                jsonschema.validate(document, OTHERS[named])
                kinds.add(named)
    assert kinds == set(OTHERS)
    certificates = [each for text in TEXTS for each in documents(text) if each["kind"] == "Certificate"]
    leaf = certificates[0]
    spoilt = copy.deepcopy(leaf)
    spoilt["spec"]["dnsName"] = "a"
    with pytest.raises(jsonschema.ValidationError, match="dnsName"):
        jsonschema.validate(spoilt, OTHERS[leaf["apiVersion"], "Certificate"])


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
