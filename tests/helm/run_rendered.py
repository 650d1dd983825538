"""Runs a rendered RayService on emulated nodes and tells in a line of JSON what happened.

Arguments: its file, folders for certificates and for the file of API keys.

A process of its own, because a process joins one Ray cluster and the session's tests have theirs.
"""

import hashlib
import json
import os
import socket
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from cluster.app import Running
from cluster.client import Ask, Client, RequestFailedError
from cluster.config import EmulatedNode, Emulation, parse_config
from cluster.emulation import emulated
from tests.drafting.certificates import Authority
from tests.helm.chart import chart_file, ray_groups

PATIENCE_S = 150
KEY = "rendered"
ASK = Ask(prompt="one two one two one two", temperature=0, max_tokens=60, seed=1)


def node(group):
    """The Ray node that a pod of the group starts: its labels, and what rayStartParams say it has."""
    params = group["rayStartParams"]
    return EmulatedNode(
        labels=group["labels"], num_cpus=int(params["num-cpus"]), num_gpus=int(params["num-gpus"])
    )


def on_one_machine(text, ports):
    """The text with what many nodes on one machine cannot share: the proxies' ports."""
    for before, after in {
        "proxy_location: EveryNode": "proxy_location: HeadOnly",
        "port: 8000": f"port: {ports[0]}",
        "port: 9000": f"port: {ports[1]}",
    }.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def deploy(text):
    """As KubeRay has Ray's dashboard do it."""
    config = ServeDeploySchema.model_validate(yaml.safe_load(text))
    serve.start(
        proxy_location=config.proxy_location,
        http_options=config.http_options.model_dump(),
        grpc_options=config.grpc_options.model_dump(),
        logging_config=config.logging_config,
    )
    _get_global_client().deploy_apps(config)
    return config


def eventually(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    trouble = None
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except Exception as error:
            trouble = error
        time.sleep(0.2)
    statuses = {name: (each.status, each.message) for name, each in serve.status().applications.items()}
    raise TimeoutError(f"{what}: {trouble}; {statuses}")


def asked(client):
    answer = client.answer(ASK)
    provenance = answer.final.provenance
    return {
        "token_ids": answer.token_ids,
        "drafted": provenance.draft_tokens,
        "drafters": [each.kind for each in provenance.drafters],
        "fallbacks": dict(provenance.fallbacks),
        "reasons": list(provenance.reasons),
        "lossless": provenance.lossless,
    }


def allow(keys, key):
    """The gateway's file of keys, with this one alone."""
    tenant = {"name": "a", "keys": [hashlib.sha256(key.encode()).hexdigest()]}
    keys.mkdir(exist_ok=True)
    (keys / "new").write_text(yaml.safe_dump({"tenants": [tenant]}))
    os.replace(keys / "new", keys / "keys.yaml")


def refusal(endpoint, key):
    """The status of a request with this key; empty if it is answered."""
    try:
        with Client(endpoint, timeout=60, api_key=key) as client:
            client.answer(Ask(prompt="ready?", max_tokens=1))
    except RequestFailedError as refused:
        return refused.code
    return ""


def checked(endpoint):
    """What the chart's own test says of the cluster."""
    namespace = {"__name__": "check"}
    exec(chart_file("files", "check.py").read_text(), namespace)
    return namespace["main"](endpoint, "one two one two", "coupled")


# What the pods' certificate is one after another, and what the verifier then says of the drafter.
WRONG = {
    "expired": (lambda ours, theirs, pki: ours.issue("tls", expired=True), "certificate has expired"),
    "of a stranger": (
        lambda ours, theirs, pki: theirs.issue("tls", into=ours),
        "unable to get local issuer certificate",
    ),
    "of another name": (lambda ours, theirs, pki: ours.issue("tls", "web.example"), "hostname verification"),
    "not there": (lambda ours, theirs, pki: os.remove(pki / "tls.crt"), "cannot be read"),
}


def story(service, pki, keys):
    ports = free_ports(2)
    authority, stranger = Authority(pki), Authority(pki.parent / "stranger")
    (pki / "ca.crt").write_bytes(authority.file.read_bytes())
    authority.issue("tls", expired=True)
    allow(keys, KEY)
    config = deploy(on_one_machine(service["spec"]["serveConfigV2"], ports))
    endpoint = f"127.0.0.1:{ports[1]}"
    running = Running(parse_config(config.applications[0].args), endpoint, "", None)

    def drafting():
        return running.info("verifier")["drafting"]

    with Client(endpoint, timeout=60, api_key=KEY) as client:
        eventually(lambda: client.answer(Ask(prompt="ready?", max_tokens=1)), "an answer")
        yield "no key", refusal(endpoint, "")
        for kind, (change, words) in WRONG.items():
            change(authority, stranger, pki)
            eventually(lambda said=words: said in drafting(), kind)
            yield kind, asked(client)
        authority.issue("tls")
        eventually(lambda: drafting() == "connected", "a drafter in use")
        yield "renewed", asked(client)
        os.environ["TRUEDRAFT_API_KEY"] = KEY
        yield "helm test", checked(endpoint)
        allow(keys, "another")
        eventually(lambda: refusal(endpoint, "another") == "", "an answer with the new key")
        yield "old key", refusal(endpoint, KEY)
        yield (
            "placement",
            {
                deployment: [each.labels["truedraft.io/role"] for each in running.replicas(deployment)]
                for deployment in ("gateway", "verifier", "drafter")
            },
        )


def main(service_file, pki, keys):
    service = yaml.safe_load(Path(service_file).read_text())
    nodes = tuple(node(group) for group in ray_groups(service).values())
    out = sys.stdout
    with redirect_stdout(sys.stderr), emulated(Emulation(enabled=True, nodes=nodes)):
        found = dict(story(service, Path(pki), Path(keys)))
    print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
