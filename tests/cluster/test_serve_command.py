"""`truedraft serve` from outside: one line when ready, and no process left, however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from cluster.checkpoints.tiny import build_tiny
from cluster.client import Ask, Client
from tests.drafter_service.dflash.checkpoints import build_drafter
from tests.drafting.certificates import Authority

pytestmark = pytest.mark.cluster

MARK = "TRUEDRAFT_TEST_MARK"


@pytest.fixture
def serve(tmp_path):
    """Starts the command on a tiny model; `left()` are the processes that descend from it and live."""
    mark = uuid.uuid4().hex
    model = build_tiny(tmp_path / "tiny", seed=1)
    started = []

    def start(*arguments):
        ports = ("--set", "gateway.grpc_port=0", "--set", "gateway.http_port=0")
        command = ["serve", "--emulate", "--json", "--model", str(model), *ports, *arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {MARK: mark},
            # A runner in the background of a shell ignores interrupts, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    def left():
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.name())
            except psutil.Error:
                continue
        return found

    yield start, left
    for process in started:
        process.kill()
        process.wait()


def test_drafts_come_over_mutual_tls_by_the_flags(serve, tmp_path):
    start, left = serve
    # Both sides show the same certificate, as pods of one Secret do.
    authority = Authority(tmp_path / "pki")
    tls = authority.issue("tls", expired=True)
    flags = ("--tls-cert", tls.certificate, "--tls-key", tls.private_key, "--tls-ca", tls.authority)
    # One that reads the target's hidden states, so that these come by the channel, too.
    layers = {"target_layer_ids": [0, 1]}
    drafter = build_drafter(tmp_path / "d", hidden_size=64, num_target_layers=2, dflash_config=layers)
    process = start(*flags, "--drafter", str(drafter), "--set", "verifier.planner=fixed")
    ready = json.loads(process.stdout.readline())

    def answered(client, condition):
        """The first provenance of which it holds."""
        for _ in range(100):
            answer = client.answer(Ask(prompt="one two one two one two", max_tokens=40, temperature=0))
            if condition(answer.final.provenance):
                return answer
            time.sleep(0.3)
        raise TimeoutError(answer.final.provenance)

    with Client(ready["grpc"], timeout=60) as client:
        refused = answered(client, lambda said: "certificate has expired" in " ".join(said.reasons))
        assert refused.final.provenance.draft_tokens == 0
        authority.issue("tls")
        drafted = answered(client, lambda said: said.draft_tokens > 0)
    assert drafted.token_ids == refused.token_ids
    assert drafted.final.provenance.drafters[0].kind == "dflash"
    process.terminate()
    process.communicate(timeout=60)
    assert left() == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_one_line_when_ready_and_nothing_left_behind(serve, ending):
    start, left = serve
    process = start("--drafter", "off")
    ready = json.loads(process.stdout.readline())
    assert ready["model"] == "tiny"
    assert {each["deployment"] for each in ready["replicas"]} == {"gateway", "verifier"}
    with Client(ready["grpc"], timeout=30) as client:
        assert client.answer(Ask(prompt="hello", max_tokens=3)).final.provenance.draft_tokens == 0
    process.send_signal(ending)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors
    assert left() == []


def test_a_start_that_fails_says_why_and_leaves_nothing(serve):
    start, left = serve
    process = start("--set", "start_timeout_s=3", "--set", "verifier.placement.label_selector={zone: mars}")
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    error = json.loads(out)["error"]
    assert error["code"] == "START_FAILED"
    assert "no node is labelled zone=mars" in error["message"]
    assert "Traceback" not in errors
    assert left() == []
