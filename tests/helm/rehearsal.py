"""Runs the CPU example's pods as network namespaces of this machine.

They have the addresses, ports, tokens and certificates that pods would have, and who spoke to whom is
compared with the NetworkPolicies. `make rehearsal`, as root and with iproute2: a minute or two; nothing is
left behind, because everything is in namespaces of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from cluster.checkpoints.tiny import build_tiny
from tests.drafting.certificates import Authority
from tests.helm.chart import chart_file, documents, ray_groups, ray_service, template

INSIDE = "TRUEDRAFT_REHEARSAL"
TOKEN = "rehearsal"
PATIENCE_S = 240
NETWORK = "10.77.0"


def run(*command):
    subprocess.run(command, check=True)


class Pods:
    """Every pod as a network namespace on one bridge; `addresses` by the name of its group."""

    def __init__(self, groups):
        self.groups = groups
        self.addresses = {name: f"{NETWORK}.{10 + number}" for number, name in enumerate(groups)}
        self.listening = {name: set() for name in groups}
        self.connections = set()

    def start(self):
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        for number, (name, address) in enumerate(self.addresses.items()):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"v{number}", "master", "br0", "up")
            for command in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
                run("ip", "-n", name, *command.split())
            run("ip", "-n", name, "route", "add", "default", "via", f"{NETWORK}.1")
        for name in self.groups:
            self._ray(name)
            if name == "head":
                until(lambda: dashboard(self.addresses["head"]), "the dashboard")

    def _ray(self, name):
        """`ray start` as KubeRay writes it, with a /tmp of the pod's own."""
        group, address = self.groups[name], self.addresses[name]
        joins = "--head" if name == "head" else f"--address={self.addresses['head']}:6379"
        params = " ".join(f"--{key}={value}" for key, value in group["rayStartParams"].items())
        labels = ",".join(f"{key}={value}" for key, value in group["labels"].items())
        ray = Path(sys.prefix) / "bin" / "ray"
        start = f"exec {ray} start {joins} --block --node-ip-address={address} {params} --labels={labels}"
        script = f"mount -t tmpfs tmpfs /tmp/ray && {start} --object-store-memory=80000000"
        subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "-m", "bash", "-c", script],
            env=os.environ
            | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
        )

    def watch(self):
        """Takes down what is open now."""
        for name in self.groups:
            sockets = subprocess.run(
                ["ip", "netns", "exec", name, "ss", "-Htan"], capture_output=True, text=True
            )
            for line in sockets.stdout.splitlines():
                state, _, _, local, peer = line.split()[:5]
                here, there = (each.replace("[::ffff:", "").replace("]", "") for each in (local, peer))
                if state == "LISTEN":
                    self.listening[name].add(int(here.rpartition(":")[2]))
                else:
                    self.connections.add((name, there))

    def used(self):
        """(from, to, port) of every connection between two pods."""
        names = {address: name for name, address in self.addresses.items()}
        found = set()
        for source, peer in self.connections:
            address, _, port = peer.rpartition(":")
            target = names.get(address, source)
            if target != source and int(port) in self.listening[target]:
                found.add((source, target, int(port)))
        return found


def dashboard(head, body=None, token=TOKEN):
    """Ray's Serve API, which KubeRay's operator calls: reads the applications, or deploys `body`."""
    request = urllib.request.Request(
        f"http://{head}:8265/api/serve/applications/",
        method="PUT" if body else "GET",
        data=json.dumps(body).encode() if body else None,
        headers={"Content-Type": "application/json"}
        | ({"Authorization": f"Bearer {token}"} if token else {}),
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read() or "null") or {}


def until(condition, what):
    deadline, trouble = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < deadline:
        try:
            if (value := condition()) is not None:
                return value
        except OSError as error:
            trouble = error
        time.sleep(1)
    sys.exit(f"no {what} within {PATIENCE_S} s: {trouble}")


def closed(text, used, roles):
    """What the policies would not have let through. roles: of the pods by name."""
    policies = [each["spec"] for each in documents(text) if each["kind"] == "NetworkPolicy"]

    def component(selector, role):
        wanted = selector.get("matchLabels", {}).get("app.kubernetes.io/component", role)
        among = [each["values"] for each in selector.get("matchExpressions", [])]
        return wanted == role and all(role in values for values in among)

    def allowed(here, there, port, direction, side):
        rules = [
            rule
            for policy in policies
            if component(policy["podSelector"], here)
            for rule in policy.get(direction, [])
        ]
        return any(
            any(each["port"] <= port <= each.get("endPort", each["port"]) for each in rule["ports"])
            and any(
                "podSelector" in peer and component(peer["podSelector"], there) for peer in rule.get(side, [])
            )
            for rule in rules
        )

    return {
        (source, target, port)
        for source, target, port in used
        if not allowed(roles[target], roles[source], port, "ingress", "from")
        or not allowed(roles[source], roles[target], port, "egress", "to")
    }


def rehearse(folder):
    authority = Authority(folder / "pki")
    authority.issue("tls")
    (folder / "pki" / "ca.crt").write_bytes(authority.file.read_bytes())
    settings = {
        "config.model": build_tiny(folder / "tiny", seed=1),
        "channel.mountPath": folder / "pki",
        "config.verifier.threads": 1,
        "config.verifier.planner": "fixed",
        "config.verifier.draft_ahead": "false",
    }
    text = template("cpu", *(f"{name}={value}" for name, value in settings.items())).stdout
    service = ray_service(text)
    pods = Pods(ray_groups(service))
    pods.start()
    head = pods.addresses["head"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        dashboard(head, token=None)
    dashboard(head, yaml.safe_load(service["spec"]["serveConfigV2"]))

    def running():
        pods.watch()
        states = [each["status"] for each in dashboard(head)["applications"].values()]
        return states if states == ["RUNNING"] * 2 else None

    until(running, "running applications")
    namespace = {"__name__": "check"}
    exec(chart_file("files", "check.py").read_text(), namespace)
    # Every pod carries a proxy, since the serve Service chooses among all.
    for name, address in pods.addresses.items():
        arguments = f"{address}:9000", "one two one two", "coupled"
        until(lambda given=arguments: namespace["main"](*given) == "" or None, name)
        pods.watch()
    groups = ray_groups(service)
    roles = {
        name: groups[name]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] for name in groups
    }
    for source, target, port in sorted(pods.used()):
        print(f"{source:>14} -> {target:<14} {port}")
    if stopped := closed(text, pods.used(), roles):
        sys.exit(f"the NetworkPolicies would stop {sorted(stopped)}")
    drafting = {(source, target) for source, target, port in pods.used() if 7400 <= port <= 7415}
    assert drafting == {("verifier-cpu", "drafter-cpu")}
    print("every connection between pods is one that the NetworkPolicies let through")


def main():
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        Path("/tmp/ray").mkdir(exist_ok=True)
        namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc"]
        os.execvp(namespaces[0], [*namespaces, sys.executable, "-m", __spec__.name])
    run("ip", "link", "set", "lo", "up")
    with tempfile.TemporaryDirectory() as folder:
        rehearse(Path(folder))


if __name__ == "__main__":
    main()
