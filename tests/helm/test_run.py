"""The CPU example's serveConfigV2, run on nodes labelled as its pods, with mutual TLS and API keys."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from cluster.checkpoints.tiny import build_tiny
from tests.helm.chart import ray_service, template
from tests.helm.run_rendered import WRONG

# A cluster comes up, and finds its drafter anew after each certificate.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rendered")
    pki, keys = folder / "pki", folder / "keys"
    settings = {
        "config.model": build_tiny(folder / "tiny", seed=1),
        "channel.mountPath": pki,
        "apiKeys.existingSecret": "tenants",
        "config.gateway.anonymous": "false",
        "apiKeys.mountPath": keys,
        "config.verifier.threads": 1,
        # Asks for blocks whatever they are worth, and waits for them: a model this small decodes faster.
        "config.verifier.planner": "fixed",
        "config.verifier.draft_ahead": "false",
    }
    service = ray_service(template("cpu", *(f"{name}={value}" for name, value in settings.items())).stdout)
    file = folder / "rayservice.yaml"
    file.write_text(yaml.safe_dump(service))
    command = [sys.executable, "-m", "tests.helm.run_rendered", str(file), str(pki), str(keys)]
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


@pytest.mark.parametrize("kind", WRONG)
def test_without_a_good_certificate_it_answers_by_plain_decoding_and_says_why(story, kind):
    answer, (_, words) = story[kind], WRONG[kind]
    assert answer["drafted"] == 0
    assert answer["fallbacks"]["no-drafter"] > 0
    assert answer["lossless"]
    assert any(words in reason for reason in answer["reasons"])
    assert answer["token_ids"] == story["renewed"]["token_ids"]


def test_with_a_new_one_drafts_come_over_mutual_tls_without_a_restart(story):
    renewed = story["renewed"]
    assert renewed["drafted"] > 0
    assert renewed["drafters"] == ["ngram"]
    assert renewed["fallbacks"] == {}


def test_the_gateway_answers_those_with_a_key_of_the_secret_as_it_is_now(story):
    assert story["no key"] == story["old key"] == "UNAUTHENTICATED"
