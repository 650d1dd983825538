"""Kinds of other projects as JSON Schemas by hand: the fields that the chart uses, and no others.

Their definitions: cert-manager.io/v1, gateway.networking.k8s.io/v1 (Gateway API 1.1 and newer),
monitoring.coreos.com/v1 and v1alpha1 (Prometheus operator 0.65 and newer).
"""

STRING = {"type": "string", "minLength": 1}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
# Of Go: several units may follow each other.
GO_DURATION = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}
PROMETHEUS_DURATION = {"type": "string", "pattern": r"^(\d+(ms|[smhdwy]))+$"}


def an_object(required=(), **properties):
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def several(items, least=1):
    return {"type": "array", "items": items, "minItems": least}


def kind(api, name, spec):
    """The whole document. Its name must be one of DNS."""
    dns = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
    metadata = an_object(["name", "labels"], name=dns, labels=STRINGS)
    whole = an_object(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": api},
        kind={"const": name},
        metadata=metadata,
        spec=spec,
    )
    return {(api, name): whole}


CERT_MANAGER, MONITORING = "cert-manager.io/v1", "monitoring.coreos.com/v1"
GATEWAY = "gateway.networking.k8s.io/v1"

ISSUER_REF = an_object(
    ["name"], name=STRING, kind={"enum": ["Issuer", "ClusterIssuer"]}, group={"const": "cert-manager.io"}
)
ISSUER = {
    "oneOf": [
        an_object(["selfSigned"], selfSigned={"type": "object"}),
        an_object(["ca"], ca=an_object(["secretName"], secretName=STRING)),
    ]
}
CERTIFICATE = an_object(
    ["secretName", "issuerRef"],
    secretName=STRING,
    issuerRef=ISSUER_REF,
    commonName={"type": "string", "maxLength": 64},
    dnsNames=several(STRING),
    isCA={"type": "boolean"},
    duration=GO_DURATION,
    renewBefore=GO_DURATION,
    usages=several({"enum": ["digital signature", "server auth", "client auth"]}),
    privateKey=an_object(
        [],
        algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
        size={"type": "integer"},
        rotationPolicy={"enum": ["Never", "Always"]},
    ),
)

SECRET_KEY = an_object(["name", "key"], name=STRING, key=STRING)
SCRAPE_CONFIG = an_object(
    ["staticConfigs", "metricsPath"],
    metricsPath={"type": "string", "pattern": "^/"},
    scrapeInterval=PROMETHEUS_DURATION,
    staticConfigs=several(an_object(["targets"], targets=several(STRING), labels=STRINGS)),
    authorization=an_object(["credentials"], type=STRING, credentials=SECRET_KEY),
)
POD_MONITOR = an_object(
    ["selector", "podMetricsEndpoints"],
    selector=an_object(["matchLabels"], matchLabels=STRINGS),
    podMetricsEndpoints=several(
        an_object(
            ["port"],
            port=STRING,
            interval=PROMETHEUS_DURATION,
            relabelings=several(
                an_object(["sourceLabels", "targetLabel"], sourceLabels=several(STRING), targetLabel=STRING)
            ),
        )
    ),
)
RULE = an_object(
    ["expr"],
    alert=STRING,
    record=STRING,
    expr=STRING,
    **{"for": PROMETHEUS_DURATION},
    labels=STRINGS,
    annotations=STRINGS,
)
RULE["oneOf"] = [{"required": ["alert"]}, {"required": ["record"]}]
PROMETHEUS_RULE = an_object(
    ["groups"], groups=several(an_object(["name", "rules"], name=STRING, rules=several(RULE)))
)

PARENT = an_object(
    ["name"], name=STRING, namespace=STRING, group=STRING, kind=STRING, sectionName=STRING, port=PORT
)
BACKEND = an_object(["name", "port"], name=STRING, port=PORT)
HTTP_MATCH = an_object(
    ["path"],
    path=an_object(
        ["type", "value"],
        type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
        value={"type": "string", "pattern": "^/"},
    ),
)
# A method with neither service nor method is refused.
GRPC_MATCH = an_object(["method"], method=an_object(["service"], service={"pattern": r"^[\w.]+$"}))


def route(match):
    rule = an_object(["matches", "backendRefs"], matches=several(match), backendRefs=several(BACKEND))
    return an_object(
        ["parentRefs", "rules"], parentRefs=several(PARENT), hostnames=several(STRING), rules=several(rule)
    )


# By apiVersion and kind.
OTHERS = {
    **kind(CERT_MANAGER, "Issuer", ISSUER),
    **kind(CERT_MANAGER, "Certificate", CERTIFICATE),
    **kind(f"{MONITORING}alpha1", "ScrapeConfig", SCRAPE_CONFIG),
    **kind(MONITORING, "PodMonitor", POD_MONITOR),
    **kind(MONITORING, "PrometheusRule", PROMETHEUS_RULE),
    **kind(GATEWAY, "HTTPRoute", route(HTTP_MATCH)),
    **kind(GATEWAY, "GRPCRoute", route(GRPC_MATCH)),
}
