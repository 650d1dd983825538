"""Wrong values are refused by the schema or by the chart, in words that name them."""

import re

import pytest
import yaml

from cluster.config import ConfigError, load_config
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
    ("cpu", "config.laws.allowed={coupled,truth}"): "at '/config/laws/allowed/1': value must be one of",
    ("cpu", "config.laws.lossy={coupled}"): "at '/config/laws/lossy/0': value must be one of",
    ("a10g-2xh100", "config.laws.lossy={truncation:min_p}"): (
        "config.laws.lossy has truncation:min_p, which keeps no config.laws.max_distortion."
    ),
    ("a10g-2xh100", "config.laws.max_overshoot=0"): "minimum: got 0, want 1",
    ("cpu", "config.audit.replay_share=2"): "at '/config/audit/replay_share': maximum: got 2, want 1",
    ("cpu", "config.gateway.keys_file=/keys"): "additional properties 'keys_file' not allowed",
    (
        "cpu",
        "config.verifier.block_length_min=9",
    ): "block_length_min is 9, more than block_length, which is 8.",
    ("cpu", "config.verifier.max_active=72"): (
        "config.verifier.step_rows is 640, less than max_active x (block_length + 1), which is 648."
    ),
    ("l4-h100", "config.verifier.max_replicas=1"): (
        "config.verifier.max_replicas is 1, less than replicas, which is 2."
    ),
    (
        "cpu",
        "config.drafter.model=x",
    ): "config.drafter.model is set, but config.drafter.kind ngram takes none.",
    ("l4-h100", "config.drafter.mode=local"): "config.drafter.mode local drafts with kind ngram only",
    ("cpu", "config.drafter.ports={7415,7400}"): "first and last of a range, not 7415 and 7400.",
    (
        "cpu",
        "config.drafter.ports=null",
    ): "config.drafter.ports must name the first and last port of drafters",
    ("l4-h100", "networkPolicy.clients=null"): "networkPolicy.clients must name the pods of the Ingress",
    ("a10g-2xh100", "networkPolicy.clients=null"): "networkPolicy.clients must name the pods of the Ingress",
    ("l4-h100", "monitoring.scrapeConfig.credentials.existingSecret="): (
        "monitoring.scrapeConfig.credentials must name an operator's API key"
    ),
    ("cpu", "apiKeys.secret=x"): "at '/apiKeys': additional properties 'secret' not allowed",
    ("cpu", "config.gateway.anonymous=false"): (
        "without a key: set apiKeys.existingSecret, or config.gateway.anonymous."
    ),
    ("l4-h100", "apiKeys.existingSecret="): "without a key: set apiKeys.existingSecret",
    ("cpu", "apiKeys.existingSecret=x"): "config.gateway.anonymous and apiKeys.existingSecret exclude",
    ("cpu", "config.gateway.anonymous=maybe"): "at '/config/gateway/anonymous': got string, want boolean",
    ("l4-h100", "config.gateway.replicas=5"): "config.gateway.replicas needs 3 pods of the gateway",
}


@pytest.mark.parametrize(("example", "setting"), CASES)
def test_a_wrong_value_is_refused_in_words(example, setting):
    result = template(example, setting, check=False)
    assert result.returncode != 0
    assert CASES[example, setting] in result.stderr
    refusals = [line for line in result.stderr.splitlines() if line.startswith(("- at", "Error: execution"))]
    assert len(refusals) == 1, result.stderr


# What the configuration refuses of several fields together, so that pods need not start to find out.
TOGETHER = [
    "laws.allowed=[none]",
    "laws={lossy: ['truncation:min_p'], max_distortion: 0.1}",
    "laws={lossy: ['truncation:typical'], max_overshoot: 2}",
    "verifier.block_length_min=9",
    "verifier={block_length: 4, block_length_min: 5}",
    "verifier.max_active=72",
    "verifier={step_rows: 100}",
    "verifier={replicas: 2, max_replicas: 1}",
    "drafter={replicas: 2, max_replicas: 1}",
    "drafter.model=x",
    "drafter={mode: local, kind: causal_lm}",
    "drafter.ports=[9, 8]",
]
# As far as one may go.
FINE = ["verifier.block_length_min=8", "verifier.max_active=71", "verifier={step_rows: 576}"]


@pytest.mark.parametrize("override", [*TOGETHER, *FINE])
def test_the_chart_refuses_what_the_configuration_does(override, tmp_path):
    name, _, text = override.partition("=")
    given = yaml.safe_load(text)
    for part in reversed(name.split(".")):
        given = {part: given}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": given}))
    refused = template("cpu", values=values, check=False)
    if override in FINE:
        load_config(None, [override])
        assert refused.returncode == 0, refused.stderr
    else:
        with pytest.raises(ConfigError):
            load_config(None, [override])
        assert "Error: execution" in refused.stderr
        assert "config." in refused.stderr


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
