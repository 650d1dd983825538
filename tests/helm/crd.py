"""RayService as a JSON Schema: made from KubeRay's CRD where that can be had, and by hand for others."""

import os
from pathlib import Path

import yaml

# A folder with ray.io_rayservices.yaml, such as helm-chart/kuberay-operator/crds of the KubeRay project.
FOLDER = "TRUEDRAFT_KUBERAY_CRDS"


def crd_schema():
    """The schema of ray.io/v1 RayService that refuses unknown fields; None without the folder."""
    if not (folder := os.environ.get(FOLDER)):
        return None
    crd = yaml.load(Path(folder, "ray.io_rayservices.yaml").read_text(), yaml.CSafeLoader)
    [version] = [each for each in crd["spec"]["versions"] if each["name"] == "v1"]
    return _strict(version["schema"]["openAPIV3Schema"])


def _strict(schema):
    """From OpenAPI as Kubernetes has it to JSON Schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {
        key: schema[key]
        for key in ("type", "enum", "required", "pattern", "minimum", "maximum")
        if key in schema
    }
    if "properties" in schema:
        made["properties"] = {name: _strict(each) for name, each in schema["properties"].items()}
        # Metadata is an object without fields in a CRD, because the API server knows it.
        made["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = _strict(schema["items"])
    return made


_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_GROUP = {
    "labels": _STRINGS,
    "rayStartParams": _STRINGS,
    "template": {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["containers"]},
        },
        "additionalProperties": False,
    },
}


def _object(required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


# The fields that the chart uses, and what KubeRay 1.6 and newer ask of them.
BY_HAND = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=_object(["name", "labels"], name={"type": "string", "maxLength": 40}, labels=_STRINGS),
    spec=_object(
        ["serveConfigV2", "rayClusterConfig", "upgradeStrategy"],
        excludeHeadPodFromServeSvc={"type": "boolean"},
        serveConfigV2={"type": "string"},
        upgradeStrategy=_object(
            ["type"],
            type={"enum": ["None", "NewCluster", "NewClusterWithIncrementalUpgrade"]},
            clusterUpgradeOptions=_object(
                ["gatewayClassName", "stepSizePercent", "intervalSeconds"],
                gatewayClassName={"type": "string"},
                stepSizePercent={"type": "integer"},
                intervalSeconds={"type": "integer"},
                maxSurgePercent={"type": "integer"},
            ),
        ),
        rayClusterConfig=_object(
            ["rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"],
            rayVersion={"type": "string"},
            authOptions=_object(
                ["mode"], mode={"enum": ["token", "disabled"]}, secretName={"type": "string"}
            ),
            enableInTreeAutoscaling={"type": "boolean"},
            autoscalerOptions=_object(
                ["version"],
                version={"const": "v2"},
                idleTimeoutSeconds={"type": "integer"},
                resources={"type": "object"},
                securityContext={"type": "object"},
            ),
            gcsFaultToleranceOptions=_object(
                ["backend", "redisAddress"],
                backend={"const": "redis"},
                redisAddress={"type": "string"},
                redisPassword=_object(["valueFrom"], valueFrom={"type": "object"}),
            ),
            headGroupSpec=_object(
                ["rayStartParams", "template"],
                serviceType={"const": "ClusterIP"},
                enableIngress={"const": False},
                **_GROUP,
            ),
            workerGroupSpecs={
                "type": "array",
                "minItems": 1,
                "items": _object(
                    ["groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                    groupName={"type": "string", "maxLength": 63},
                    replicas={"type": "integer"},
                    minReplicas={"type": "integer"},
                    maxReplicas={"type": "integer"},
                    **_GROUP,
                ),
            },
        ),
    ),
)
