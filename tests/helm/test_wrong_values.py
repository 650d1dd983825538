"""Wrong values are refused by the schema or by the chart, in words that name them."""

import re

import pytest

from tests.helm.chart import APIS, template

CASES = {
    # What is set on the CPU example, or another: words of the refusal.
    ("cpu", "image.repositry=x"): "at '/image': additional properties 'repositry' not allowed",
    ("cpu", "verifiers.cpu.colour=red"): "at '/verifiers/cpu': additional properties 'colour' not allowed",
    (
        "cpu",
        "config.verifier.colour=red",
    ): "at '/config/verifier': additional properties 'colour' not allowed",
    ("cpu", "config.emulation.enabled=true"): "at '/config': additional properties 'emulation' not allowed",
    ("l4-h100", "verifiers.h100.gpu.count=0"): "at '/verifiers/h100/gpu/count': minimum: got 0, want 1",
    ("cpu", "config.verifier.device=cuda"): "verifiers.cpu has no gpu, but config.verifier.device is cuda.",
    ("l4-h100", "config.verifier.device=cpu"): "verifiers.h100 has GPUs, but config.verifier.device is cpu",
    ("l4-h100", "verifiers.h100.minReplicas=3"): (
        "verifiers.h100: minReplicas <= replicas <= maxReplicas does not hold: 3, 2, 4."
    ),
    ("l4-h100", "verifiers.h100.maxReplicas=1"): "does not hold: 1, 2, 1.",
    (
        "l4-h100",
        "autoscaling.enabled=false",
    ): "minReplicas and maxReplicas differ, but autoscaling.enabled is",
    ("l4-h100", "config.verifier.max_replicas=9"): (
        "config.verifier.max_replicas is 9, but the groups in verifiers have room for 4."
    ),
    ("l4-h100", "config.drafter.replicas=9"): (
        "config.drafter.replicas is 9, but the groups in drafters have room for 8."
    ),
    ("l4-h100", "config.verifier.placement.num_gpus=2"): "a replica takes 2 GPUs",
    ("cpu", "config.laws.default=truncation:min_p"): (
        "config.laws.default is truncation:min_p, which is not among config.laws.allowed"
    ),
    ("cpu", "config.verifier.dtype=int4"): "at '/config/verifier/dtype': value must be one of",
    (
        "cpu",
        "channel.certManager.enabled=false",
    ): "Drafts would cross the network in plain text: set channel.",
    ("cpu", "channel.existingSecret=x"): "exclude each other.",
    ("a10g-2xh100", "ingress.tlsSecret="): "ingress.enabled needs ingress.tlsSecret",
    ("a10g-2xh100", "ingress.host="): "ingress.enabled needs ingress.host.",
    ("a10g-2xh100", "model.pvc.claimName=weights"): "Weights come from one place",
    ("a10g-2xh100", "config.model=llama"): 'config.model is "llama", but the weights are mounted at /models.',
    ("cpu", "verifiers=null"): "verifiers must name at least one group of pods",
    ("cpu", "drafters=null"): "drafters must name at least one group of pods, unless config.drafter.mode is",
    ("cpu", "config.drafter.mode=local"): "drafters has groups, but config.drafter.mode is local.",
    ("cpu", "image.tag=latest"): "image.tag must not be latest",
    (
        "cpu",
        "telemetry.jaeger.image=jaegertracing/jaeger:latest",
    ): "at '/telemetry/jaeger/image': 'not' failed",
    (
        "cpu",
        "podSecurityContext.runAsNonRoot=false",
    ): "at '/podSecurityContext/runAsNonRoot': value must be true",
    ("cpu", "securityContext.privileged=true"): "at '/securityContext/privileged': value must be false",
    ("cpu", "head.resources.limits=null"): "missing property 'limits'",
    ("cpu", "telemetry.samplingRatio=2"): "at '/telemetry/samplingRatio': maximum: got 2, want 1",
    ("cpu", "telemetry.otlp.endpoint=http://a:4317"): "exclude each other.",
    ("cpu", "upgrade.strategy=NewClusterWithIncrementalUpgrade"): "needs upgrade.gatewayClassName.",
    ("l4-h100", "gatewayAPI.parentRefs=null"): "gatewayAPI.enabled needs gatewayAPI.parentRefs.",
    ("cpu", "fullnameOverride=Capital"): "at '/fullnameOverride'",
    ("cpu", "rayAuth.mode=password"): "at '/rayAuth/mode': value must be one of 'token', 'disabled'",
    ("l4-h100", "config.gateway.placement.num_cpus=2"): "config.gateway.placement.num_cpus must be at most 1",
    ("l4-h100", "config.gateway.replicas=5"): "config.gateway.replicas needs 3 pods of the gateway",
}


@pytest.mark.parametrize(("example", "setting"), CASES)
def test_a_wrong_value_is_refused_in_words(example, setting):
    result = template(example, setting, check=False)
    assert result.returncode != 0
    assert CASES[example, setting] in result.stderr
    refusals = [line for line in result.stderr.splitlines() if line.startswith(("- at", "Error: execution"))]
    assert len(refusals) == 1, result.stderr


@pytest.mark.parametrize(
    ("example", "missing"),
    [("cpu", APIS[0]), *(("l4-h100", api) for api in APIS[1:])],
)
def test_a_cluster_without_what_is_needed_is_told_so(example, missing):
    known = [api for api in APIS if api != missing]
    result = template(example, apis=known, check=False)
    assert result.returncode != 0
    assert re.search(f"(does not know|needs) {missing}(,| )", result.stderr)


def test_a_chart_without_values_says_what_is_missing():
    assert "see examples/" in template(example=None, check=False).stderr
