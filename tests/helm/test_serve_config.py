"""serveConfigV2 by Ray's own model and by ours, and that it says what the values say."""

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.applications import APPLICATION, DRAFTERS, drafters, truedraft
from cluster.config import ClusterConfig, parse_config
from cluster.gateway.ingress import SERVICER
from tests.helm.chart import (
    EXAMPLE_NAMES,
    EXAMPLES,
    ray_groups,
    ray_service,
    rendered_example,
    serve_config,
    template,
)


def applications(text):
    config = serve_config(ray_service(text))
    return {each["name"]: each for each in config["applications"]}


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_ray_reads_it_and_knows_every_field(name):
    config = serve_config(ray_service(rendered_example(name)))
    read = ServeDeploySchema.model_validate(config)
    assert set(config) <= set(ServeDeploySchema.model_fields)
    for given, application in zip(config["applications"], read.applications, strict=True):
        assert set(given) <= set(type(application).model_fields)
        module, _, function = application.import_path.partition(":")
        assert module == truedraft.__module__
        assert function in (truedraft.__name__, drafters.__name__)
    assert read.grpc_options.grpc_servicer_functions == [SERVICER]
    # Where KubeRay's probes look.
    assert read.http_options.port == 8000


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_the_applications_build_from_it(name):
    built = {"truedraft": truedraft, "drafters": drafters}
    for each in applications(rendered_example(name)).values():
        assert built[each["import_path"].partition(":")[2]](each["args"])


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_it_is_the_configuration_of_the_values(name):
    values = yaml.safe_load((EXAMPLES / name / "values.yaml").read_text())
    served = applications(rendered_example(name))
    # A replica's GPUs are those of its pod, which the chart says and the values' own configuration does not.
    placement = served[APPLICATION]["args"].get("verifier", {}).get("placement", {})
    config = values["config"]
    asked = parse_config(config | {"verifier": config.get("verifier", {}) | {"placement": placement}})
    verifier = parse_config(served[APPLICATION]["args"])
    drafter = parse_config(served[DRAFTERS]["args"])
    assert (verifier.model, verifier.served_name, verifier.laws) == (
        asked.model,
        asked.served_name,
        asked.laws,
    )
    spec = drafter.drafter_spec()
    assert (spec.kind, spec.model, spec.device) == (
        asked.drafter_spec().kind,
        asked.drafter_spec().model,
        asked.drafter.device,
    )
    assert verifier.verifier_spec().channel == spec.channel
    assert spec.channel.secure
    scales = {each.pop("name"): each for app in served.values() for each in app["deployments"]}
    assert scales == {
        "GatewayDeployment": {"num_replicas": asked.gateway.replicas},
        "VerifierDeployment": asked.verifier.scale(),
        "DrafterDeployment": {"num_replicas": asked.drafter.replicas},
    }


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_replicas_fit_the_groups_of_their_role(name):
    text = rendered_example(name)
    groups, served = ray_groups(ray_service(text)), applications(text)
    config = parse_config(served[APPLICATION]["args"])
    placements = {
        "gateway": config.gateway.placement,
        "verifier": config.verifier.placement,
        "drafter": parse_config(served[DRAFTERS]["args"]).drafter.placement,
    }
    for role, placement in placements.items():
        assert placement.label_selector == {"truedraft.io/role": role}
        of_role = [each for each in groups.values() if each["labels"]["truedraft.io/role"] == role]
        assert of_role
        for group in of_role:
            assert float(group["rayStartParams"]["num-cpus"]) >= placement.num_cpus
            assert float(group["rayStartParams"]["num-gpus"]) >= placement.num_gpus


def test_scaling_drafters_leaves_the_verifiers_application_as_it_was():
    few, many = (
        applications(template("l4-h100", f"config.drafter.replicas={count}").stdout) for count in (2, 6)
    )
    assert few[APPLICATION] == many[APPLICATION]
    # Serve starts replicas anew when an application's arguments change.
    assert few[DRAFTERS]["args"] == many[DRAFTERS]["args"]
    assert few[DRAFTERS] != many[DRAFTERS]


def test_large_numbers_stay_integers():
    args = applications(template("cpu", "config.verifier.kv_tokens=16777216").stdout)[APPLICATION]["args"]
    assert args["verifier"]["kv_tokens"] == 16777216
    assert isinstance(args["verifier"]["kv_tokens"], int)


def test_without_remote_drafters_there_is_one_application_and_no_certificate():
    text = template("cpu", "config.drafter.mode=local", "drafters=null", "channel.certManager.enabled=false")
    served = applications(text.stdout)
    assert list(served) == [APPLICATION]
    assert parse_config(served[APPLICATION]["args"]).drafter.mode == "local"
    assert "Certificate" not in text.stdout


def test_groups_of_different_size_share_a_replicas_size():
    config = ClusterConfig()
    assert config.verifier.placement.num_gpus == 1
    args = applications(
        template("a10g-2xh100", "verifiers.h100x2.gpu.count=8", "config.verifier.placement.num_gpus=2").stdout
    )
    assert args[APPLICATION]["args"]["verifier"]["placement"]["num_gpus"] == 2
    group = ray_groups(
        ray_service(
            template(
                "a10g-2xh100", "verifiers.h100x2.gpu.count=8", "config.verifier.placement.num_gpus=2"
            ).stdout
        )
    )["verifier-h100x2"]
    assert group["rayStartParams"]["num-cpus"] == "4"
