"""The CPU example's serveConfigV2, run for real on nodes labelled as its pods, with mutual TLS."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from cluster.checkpoints.tiny import build_tiny
from tests.helm.chart import ray_service, template

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rendered")
    pki = folder / "pki"
    settings = {
        "config.model": build_tiny(folder / "tiny", seed=1),
        "channel.mountPath": pki,
        "config.verifier.threads": 1,
        # Asks for blocks whatever they are worth.
        "config.verifier.planner": "fixed",
    }
    service = ray_service(template("cpu", *(f"{name}={value}" for name, value in settings.items())).stdout)
    file = folder / "rayservice.yaml"
    file.write_text(yaml.safe_dump(service))
    command = [sys.executable, "-m", "tests.helm.run_rendered", str(file), str(pki)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_every_replica_is_on_a_pod_of_its_role(story):
    roles = {"gateway": ["gateway"], "verifier": ["verifier"], "drafter": ["drafter"]}
    assert story["placement"] == roles


def test_the_charts_own_test_passes(story):
    assert story["helm test"] == ""


def test_with_an_expired_certificate_it_answers_by_plain_decoding_and_says_why(story):
    expired = story["expired"]
    assert expired["drafted"] == 0
    assert expired["fallbacks"]["no-drafter"] > 0
    assert expired["lossless"]
    assert any("certificate has expired" in reason for reason in expired["reasons"])


def test_with_a_new_one_drafts_come_over_mutual_tls_without_a_restart(story):
    renewed = story["renewed"]
    assert renewed["drafted"] > 0
    assert renewed["drafters"] == ["ngram"]
    assert renewed["fallbacks"] == {}
    assert renewed["token_ids"] == story["expired"]["token_ids"]
