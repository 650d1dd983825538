"""Who may ask for what: API keys from a Secret, laws, ceilings and audits as values."""

import hashlib
import os

import pytest
import yaml

from cluster.applications import APPLICATION, DRAFTERS
from cluster.config import parse_config
from cluster.gateway import tenants
from cluster.gateway.errors import RequestError
from cluster.gateway.tenants import Doors
from tests.helm.chart import documents, pod_specs, ray_service, rendered_example, serve_config, template

KEYS_FILE = "/etc/truedraft/keys/keys.yaml"


def configurations(text):
    served = serve_config(ray_service(text))["applications"]
    return {each["name"]: parse_config(each["args"]) for each in served}


def secrets(spec):
    """Secrets that a pod mounts, by name."""
    volumes = [volume for volume in spec["volumes"] if "secret" in volume]
    return {volume["secret"]["secretName"]: volume for volume in volumes}


WITH_KEYS = ("apiKeys.existingSecret=truedraft-tenants", "config.gateway.anonymous=false")


@pytest.mark.parametrize(
    ("text", "pod"),
    [
        (rendered_example("l4-h100"), "gateway"),
        (template("cpu", *WITH_KEYS).stdout, "head"),
    ],
    ids=["gateway", "gateway on the head"],
)
def test_the_gateway_alone_reads_the_keys(text, pod):
    pods = dict(pod_specs(text))
    assert [name for name, spec in pods.items() if "truedraft-tenants" in secrets(spec)] == [pod]
    volume = secrets(pods[pod])["truedraft-tenants"]
    assert volume["secret"]["items"] == [{"key": "keys.yaml", "path": "keys.yaml"}]
    mounts = {mount["name"]: mount for mount in pods[pod]["containers"][0]["volumeMounts"]}
    # A Secret mounted by subPath is never read again.
    assert mounts[volume["name"]] == {
        "name": "keys",
        "mountPath": os.path.dirname(KEYS_FILE),
        "readOnly": True,
    }
    served = configurations(text)
    assert served[APPLICATION].gateway_spec().keys_file == KEYS_FILE
    assert served[DRAFTERS].gateway.keys_file is None


def test_by_a_word_nobody_is_asked():
    text = rendered_example("cpu")
    assert configurations(text)[APPLICATION].gateway.anonymous
    assert configurations(text)[APPLICATION].gateway_spec().keys_file is None
    assert not any("keys" in name for _, spec in pod_specs(text) for name in secrets(spec))


def test_what_asks_the_gateway_itself_has_a_key_by_reference():
    text = rendered_example("l4-h100")
    [scrape] = [each for each in documents(text) if each["kind"] == "ScrapeConfig"]
    assert scrape["spec"]["authorization"] == {"credentials": {"name": "truedraft-operator", "key": "key"}}
    [check] = dict(pod_specs(text))["truedraft-test"]["containers"]
    [key] = [each for each in check["env"] if each["name"] == "TRUEDRAFT_API_KEY"]
    assert key["valueFrom"] == {"secretKeyRef": {"name": "truedraft-operator", "key": "key"}}


def test_laws_ceilings_and_audits_are_those_of_the_values(tmp_path):
    laws = {
        "allowed": ["none", "coupled"],
        "default": "none",
        "lossy": ["collaborative:cactus"],
        "max_distortion": 0.05,
        "max_overshoot": 4,
    }
    # In a file, since `--set` makes strings of fractions.
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": {"laws": laws, "audit": {"replay_share": 0.25}}}))
    served = configurations(template("cpu", values=values).stdout)[APPLICATION]
    spec = served.gateway_spec()
    assert spec.laws == ("none", "coupled", "collaborative:cactus")
    assert (spec.default_law, spec.max_distortion, spec.max_overshoot) == ("none", 0.05, 4)
    assert served.verifier_spec().replay_share == 0.25
    default = configurations(rendered_example("cpu"))[APPLICATION].gateway_spec()
    assert default.laws == ("none", "coupled", "rejection", "block")
    assert (default.max_distortion, default.max_overshoot) == (None, None)


def hand_out(folder, revision, *keys):
    """A Secret's files as the kubelet lays them: a folder for each revision, changed by one rename."""
    content = {"tenants": [{"name": "a", "keys": [hashlib.sha256(key.encode()).hexdigest() for key in keys]}]}
    (folder / revision).mkdir(parents=True)
    (folder / revision / "keys.yaml").write_text(yaml.safe_dump(content))
    os.symlink(revision, folder / "..data_tmp")
    os.rename(folder / "..data_tmp", folder / "..data")
    if not (folder / "keys.yaml").is_symlink():
        os.symlink("..data/keys.yaml", folder / "keys.yaml")


def test_a_changed_secret_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tenants, "_RELOAD_S", 0.0)
    hand_out(tmp_path, "..1", "old")
    doors = Doors(tmp_path / "keys.yaml")

    def let_in(key):
        try:
            return doors.tenant([("authorization", f"Bearer {key}")]).name
        except RequestError as refused:
            return refused.reason

    assert (let_in("old"), let_in("new")) == ("a", "unauthenticated")
    hand_out(tmp_path, "..2", "new")
    assert (let_in("old"), let_in("new")) == ("unauthenticated", "a")
