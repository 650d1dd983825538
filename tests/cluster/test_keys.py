"""A gateway with keys, as `truedraft serve` starts it: who is let in, what is told and written down."""

import asyncio
import hashlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import namedtuple
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import yaml
from google.protobuf.message_factory import GetMessageClass

from cluster.checkpoints.tiny import build_tiny
from cluster.checks.clients import ask_and_leave
from cluster.client import Ask, Client, RequestFailedError
from tests.telemetry.otlp_receiver import receiving
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc

pytestmark = pytest.mark.cluster

KEYS = {"a": "key-of-a-8471", "b": "key-of-b-9214", "operations": "key-of-operations-3305"}
WRONG = "key-that-nobody-has-5520"
# What no log and no span may hold. The tiny tokenizer knows none of it as a token.
PROMPT, STOP, ARGUMENT = "zq-prompt-6613", "zq-stop-7724", "zq-tool-8835"

EXAMPLES = Path(__file__).parents[2] / "examples"

Served = namedtuple("Served", "grpc http collector logs")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    tenants = [
        {"name": name, "keys": [hashlib.sha256(key.encode()).hexdigest()], "operator": name == "operations"}
        for name, key in KEYS.items()
    ]
    tenants[1] |= {"laws": ["none"], "max_tokens": 16}
    keys = directory / "keys.yaml"
    keys.write_text(yaml.safe_dump({"tenants": tenants}), encoding="utf-8")
    model = build_tiny(directory / "tiny", seed=1)
    # Paths of Ray's sockets must be short.
    ray = tempfile.mkdtemp(prefix="td-", dir="/tmp")
    command = [sys.executable, "-m", "cluster.cli", "serve", "--emulate", "--json", "--model", str(model)]
    command += ["--keys", str(keys), "--drafter", "ngram"]
    for field in ("gateway.grpc_port=0", "gateway.http_port=0", "verifier.planner=fixed"):
        command += ["--set", field]
    out, err = directory / "stdout", directory / "stderr"
    with receiving() as collector, out.open("w") as stdout, err.open("w") as stderr:
        # RAY_ADDRESS would join the cluster of the other tests.
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "RAY_TMPDIR": ray}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            line = process.stdout.readline()
            assert line, err.read_text()
            stdout.write(line)
            stdout.flush()
            ready = json.loads(line)
            yield Served(ready["grpc"], f"http://{ready['http']}", collector, [directory, Path(ray)])
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                shutil.rmtree(ray, ignore_errors=True)


def methods():
    """Every method of the service, its kind and the class of its requests."""
    service = pb.DESCRIPTOR.services_by_name["InferenceService"]
    for method in service.methods:
        yield service.full_name, method.name, method.server_streaming, GetMessageClass(method.input_type)


def call(channel, service, name, streams, request, metadata):
    path = f"/{service}/{name}"
    if streams:
        return list(channel.unary_stream(path, request.SerializeToString)(request, metadata=metadata))
    return channel.unary_unary(path, request.SerializeToString)(request, metadata=metadata)


def bearer(key):
    return [("authorization", f"Bearer {key}")] if key else []


@pytest.mark.parametrize("key", ["", WRONG])
def test_no_method_answers_without_a_key(served, key):
    found = list(methods())
    assert {name for _, name, _, _ in found} >= {"Generate", "Complete", "ListModels", "GetStatus"}
    with grpc.insecure_channel(served.grpc) as channel:
        for service, name, streams, kind in found:
            with pytest.raises(grpc.RpcError) as caught:
                call(channel, service, name, streams, kind(), bearer(key))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
            assert dict(caught.value.trailing_metadata())["truedraft-reason"] == "unauthenticated"


def asked(served, path, key="", body=None):
    headers = dict(bearer(key)) | {"content-type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(served.http + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_no_route_answers_without_a_key(served):
    status, document = asked(served, "/openapi.json", KEYS["a"])
    assert status == 200
    paths = {
        (method, path.replace("{model}", "tiny"))
        for path, methods in json.loads(document)["paths"].items()
        for method in methods
    }
    console = ("/console", "/console/data", "/console/console.js")
    paths |= {("get", path) for path in ("/openapi.json", "/metrics", "/", "/nothing", *console)}
    assert len(paths) >= 12
    for method, path in paths:
        for key in ("", WRONG):
            status, content = asked(served, path, key, {} if method == "post" else None)
            if path in ("/healthz", "/readyz"):
                assert status == 200
            else:
                assert status == 401, path
                assert json.loads(content)["error"]["code"] == "unauthenticated"


def test_the_examples_run_as_written_with_a_key(served, monkeypatch, capsys):
    given = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRUEDRAFT_ENDPOINT": served.grpc,
        "TRUEDRAFT_API_KEY": KEYS["a"],
        "OPENAI_BASE_URL": f"{served.http}/v1",
        "OPENAI_API_KEY": KEYS["a"],
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for example in ("python_client.py", "openai_client.py"):
        runpy.run_path(str(EXAMPLES / example))
        assert "law coupled" in capsys.readouterr().out
    command = ["bash", str(EXAMPLES / "grpcurl.sh")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert '"effective_law": "coupled"' in done.stdout, done.stderr
    monkeypatch.setenv("TRUEDRAFT_API_KEY", WRONG)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "A valid API key is needed" in done.stderr


def test_a_tenant_sees_its_own_laws_and_nothing_of_others(served):
    with grpc.insecure_channel(served.grpc) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        seen = {
            name: stub.ListModels(pb.ListModelsRequest(), metadata=bearer(key)).models[0]
            for name, key in KEYS.items()
        }
    assert (list(seen["b"].laws), seen["b"].default_law) == (["none"], "none")
    assert "coupled" in seen["a"].laws
    with Client(served.grpc, timeout=60, api_key=KEYS["b"]) as client:
        assert client.answer(Ask(prompt="one", max_tokens=3)).final.provenance.effective_law == "none"
        for ask in (Ask(prompt="one", law="coupled"), Ask(prompt="one", max_tokens=17)):
            with pytest.raises(RequestFailedError):
                client.answer(ask)
    for path, status in {"/metrics": 403, "/console/data": 401, "/console": 401}.items():
        assert asked(served, path, KEYS["a"])[0] == status
        assert asked(served, path, KEYS["operations"])[0] == 200


def test_how_much_others_ask_is_told_to_operators_alone(served):
    with grpc.insecure_channel(served.grpc) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        asked = pb.GenerateRequest(prompt="one two", max_tokens=400, seed=1, ignore_eos=True)
        # An answer may be over before anybody can ask.
        for _ in range(20):
            answer = stub.Generate(asked, metadata=bearer(KEYS["a"]))
            next(answer)
            told = {
                name: stub.GetStatus(pb.GetStatusRequest(), metadata=bearer(KEYS[name]))
                for name in ("b", "operations")
            }
            answer.cancel()
            if told["operations"].in_flight:
                break
    assert told["operations"].in_flight == 1
    assert (told["b"].in_flight, told["b"].active, told["b"].queued) == (0, 0, 0)
    assert told["b"].state == told["operations"].state


def everything_asked(served):
    """One request of every kind that carries what is secret."""
    tool = {"type": "function", "function": {"name": "f", "description": ARGUMENT}}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "tools": [tool]}
    for key in (KEYS["a"], WRONG):
        with Client(served.grpc, timeout=60, api_key=key) as client:
            for ask in (
                Ask(prompt=PROMPT, max_tokens=4, stop=[STOP]),
                Ask(prompt=PROMPT, max_tokens=4, bad_words=[STOP]),
                # Refused, each by a field that holds it.
                Ask(prompt=PROMPT, law=STOP[:3] + "x"),
                Ask(messages=[(PROMPT[:3], PROMPT)]),
                Ask(prompt=PROMPT, max_tokens=10**6),
            ):
                with suppress(RequestFailedError):
                    client.answer(ask)
        asked(served, "/v1/chat/completions", key, chat)
        asked(served, "/v1/completions", key, {"prompt": [PROMPT, PROMPT], "max_tokens": 2})
        asked(served, "/v1/completions", key, {"prompt": {PROMPT: PROMPT}})
        asked(served, f"/v1/models/{PROMPT}?key={key}", key)


def test_neither_keys_nor_prompts_are_written_down(served):
    before = len(served.collector.spans)
    everything_asked(served)
    served.collector.wait_for(lambda spans: len(spans) > before + 20, 30)
    secrets = [*KEYS.values(), WRONG, PROMPT, STOP, ARGUMENT]
    with served.collector.arrived:
        spans = repr(served.collector.spans)
    assert "truedraft.tenant" in spans
    files = [
        path
        for root in served.logs
        for path in root.rglob("*")
        if path.is_file() and path.suffix in ("", ".log", ".err", ".out", ".json")
    ]
    logs = {path: path.read_text(errors="replace") for path in files if path.stat().st_size < 50_000_000}
    # The requests are in the log, so the search can find something.
    assert any('"tenant":"a"' in text for text in logs.values())
    for secret in secrets:
        assert secret not in spans
        assert [str(path) for path, text in logs.items() if secret in text] == []


def test_64_clients_of_whom_every_third_leaves(served):
    outcome = asyncio.run(ask_and_leave(served.grpc, 64, 10.0, KEYS["operations"]))
    assert outcome.errors == []
    # At least one of each that stays.
    assert outcome.whole >= 42
    assert outcome.left > 20
    assert outcome.good, outcome
