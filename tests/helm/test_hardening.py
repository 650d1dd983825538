"""What a linter of Kubernetes objects would ask, as assertions."""

import re

import pytest

from tests.helm.chart import (
    EXAMPLE_NAMES,
    documents,
    pod_specs,
    ray_groups,
    ray_service,
    rendered_example,
    template,
)

TEXTS = {name: rendered_example(name) for name in EXAMPLE_NAMES}
PODS = [(example, name, spec) for example, text in TEXTS.items() for name, spec in pod_specs(text)]
IDS = [f"{example}-{name}" for example, name, _ in PODS]


def containers(spec):
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize(("example", "name", "spec"), PODS, ids=IDS)
class TestPods:
    def test_runs_as_an_ordinary_user_without_privileges(self, example, name, spec):
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for each in containers(spec):
            context = each["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
            assert not any("hostPort" in port for port in each.get("ports", []))

    def test_has_requests_and_limits(self, example, name, spec):
        for each in containers(spec):
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(each["resources"][kind])

    def test_names_one_image(self, example, name, spec):
        for each in containers(spec):
            assert re.fullmatch(r".+(:[^:/]+|@sha256:[0-9a-f]{64})", each["image"])
            assert not each["image"].endswith(":latest")

    def test_mounts_nothing_of_the_node_and_writes_where_it_may(self, example, name, spec):
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
        for each in containers(spec):
            mounts = {mount["mountPath"]: mount for mount in each["volumeMounts"]}
            assert "/tmp" in mounts
            assert len(mounts) == len(each["volumeMounts"])
        names = [volume["name"] for volume in spec["volumes"]]
        assert len(set(names)) == len(names)
        assert {mount["name"] for each in containers(spec) for mount in each["volumeMounts"]} == set(names)

    def test_secrets_come_by_reference(self, example, name, spec):
        for each in containers(spec):
            for variable in each.get("env", []):
                if re.search("TOKEN|PASSWORD|SECRET|HEADERS|KEY", variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"]

    def test_holds_no_right_in_the_cluster_but_a_head_that_scales(self, example, name, spec):
        account, automount = spec["serviceAccountName"], spec["automountServiceAccountToken"]
        assert account != "default"
        scales = example == "l4-h100" and name == "head"
        assert automount is scales
        assert account.endswith("-head") is scales


def test_no_object_grants_rights_or_holds_a_secret():
    for text in TEXTS.values():
        kinds = {document["kind"] for document in documents(text)}
        assert not kinds & {"Secret", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
        for document in documents(text):
            if document["kind"] == "ServiceAccount":
                assert document["automountServiceAccountToken"] is False


def test_probes():
    """Ray's containers leave theirs to KubeRay, which knows ports and tokens; others bring their own."""
    for text in TEXTS.values():
        for name, spec in pod_specs(text):
            for each in spec["containers"]:
                own = {"readinessProbe", "livenessProbe"} & set(each)
                if each["name"].startswith("ray-"):
                    assert not own
                elif spec.get("restartPolicy") != "Never":
                    assert len(own) == 2, name


def test_the_dashboard_is_for_the_operator_alone_and_ray_asks_for_a_token():
    for text in TEXTS.values():
        service = ray_service(text)
        cluster = service["spec"]["rayClusterConfig"]
        assert cluster["authOptions"]["mode"] == "token"
        assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
        assert cluster["headGroupSpec"]["enableIngress"] is False
        ports = [port["containerPort"] for port in pod_specs(text)[0][1]["containers"][0]["ports"]]
        # Ray's client port would run anybody's code.
        assert 10001 not in ports
        for document in documents(text):
            if document["kind"] in ("Ingress", "HTTPRoute", "GRPCRoute"):
                assert "8265" not in str(document)


def test_clients_reach_both_ports_through_the_serve_service():
    for text in TEXTS.values():
        for group in ray_groups(ray_service(text)).values():
            ports = {
                port["name"]: port["containerPort"]
                for port in group["template"]["spec"]["containers"][0]["ports"]
            }
            assert ports["serve"] == 8000
            # Earlier KubeRay than 1.6 drops all but `serve`.
            assert ports["serve-grpc"] == 9000


def policies(text):
    return {
        each["metadata"]["name"]: each["spec"] for each in documents(text) if each["kind"] == "NetworkPolicy"
    }


def allows(rules, port):
    return [
        rule
        for rule in rules
        if any(each["port"] <= port <= each.get("endPort", each["port"]) for each in rule.get("ports", []))
    ]


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_drafters_listen_to_verifiers_alone(example):
    found = policies(TEXTS[example])
    for name, policy in found.items():
        rules = allows(policy.get("ingress", []), 7400)
        if name == "truedraft-drafter":
            [rule] = rules
            [peer] = rule["from"]
            assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "verifier"
        else:
            assert rules == []
    [rule] = allows(found["truedraft-verifier"]["egress"], 7415)
    assert rule["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "drafter"


@pytest.mark.parametrize("example", EXAMPLE_NAMES)
def test_ray_can_speak_within_the_cluster_and_ask_for_names(example):
    policy = policies(TEXTS[example])["truedraft"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    params = ray_groups(ray_service(TEXTS[example]))["head"]["rayStartParams"]
    fixed = [int(value) for name, value in params.items() if name.endswith("-port")]
    for port in [6379, 8265, *fixed]:
        # Metrics are read from outside, and by nobody within.
        if port != int(params["metrics-export-port"]):
            assert allows(policy["ingress"], port)
            assert allows(policy["egress"], port)
    assert allows(policy["egress"], 53)


def test_traces_may_leave_and_nothing_else_in_plain_text():
    assert allows(policies(TEXTS["l4-h100"])["truedraft"]["egress"], 4317)
    assert not allows(policies(TEXTS["a10g-2xh100"])["truedraft"]["egress"], 4317)
    assert allows(policies(TEXTS["cpu"])["truedraft"]["egress"], 443)
    closed = template("cpu", "networkPolicy.egressHTTPS=false").stdout
    assert not allows(policies(closed)["truedraft"]["egress"], 443)


def test_the_port_of_redis_is_that_of_its_address():
    for address, port in {"redis.truedraft:6380": 6380, "rediss://redis:6390": 6390}.items():
        text = template("a10g-2xh100", f"gcsFaultTolerance.redisAddress={address}").stdout
        assert allows(policies(text)["truedraft"]["egress"], port)


def test_every_role_keeps_all_pods_but_one_when_nodes_are_drained():
    for text in TEXTS.values():
        budgets = [each["spec"] for each in documents(text) if each["kind"] == "PodDisruptionBudget"]
        roles = {each["selector"]["matchLabels"]["app.kubernetes.io/component"] for each in budgets}
        assert {"verifier", "drafter"} <= roles
        assert all(each["maxUnavailable"] == 1 for each in budgets)


def test_the_certificate_carries_the_name_that_both_sides_look_for():
    certificates = [each for each in documents(TEXTS["cpu"]) if each["kind"] == "Certificate"]
    [leaf] = [each["spec"] for each in certificates if not each["spec"].get("isCA")]
    from cluster.channel.spec import CHANNEL_NAME

    assert leaf["dnsNames"] == [CHANNEL_NAME]
    assert {"server auth", "client auth"} <= set(leaf["usages"])
    mounted = {
        volume["secret"]["secretName"]
        for _, spec in pod_specs(TEXTS["cpu"])
        for volume in spec["volumes"]
        if "secret" in volume
    }
    assert mounted == {leaf["secretName"]}


def test_a_group_may_have_another_image():
    digest = "sha256:" + "0" * 64
    images = {
        name: spec["containers"][0]["image"]
        for name, spec in pod_specs(
            template("cpu", f"image.digest={digest}", "verifiers.cpu.image.variant=cuda").stdout
        )
    }
    assert images["head"] == images["drafter-cpu"] == f"ghcr.io/truedraft/truedraft@{digest}"
    assert images["verifier-cpu"] == "ghcr.io/truedraft/truedraft:0.1.0-cuda"
