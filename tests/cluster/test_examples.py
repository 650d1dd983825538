"""The programs under examples/, run as they are written."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_grpcurl_example_runs_as_written(cluster):
    command = ["bash", str(EXAMPLES / "grpcurl.sh")]
    tools = str(Path(sys.executable).parent)
    environment = os.environ | {
        "TRUEDRAFT_ENDPOINT": cluster.running.grpc_address,
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "truedraft.v1.InferenceService" in done.stdout
    assert "grpc.health.v1.Health" in done.stdout
    assert "rpc Generate" in done.stdout
    assert '"effective_law": "coupled"' in done.stdout


def test_the_openai_example_runs_as_written(cluster, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://{cluster.running.http_address}/v1")
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "none")
    runpy.run_path(str(EXAMPLES / "openai_client.py"))
    assert "law coupled, claim identical-tokens, lossless True" in capsys.readouterr().out


def test_the_python_example_runs_as_written(cluster, monkeypatch, capsys):
    monkeypatch.setenv("TRUEDRAFT_ENDPOINT", cluster.running.grpc_address)
    runpy.run_path(str(EXAMPLES / "python_client.py"))
    assert "law coupled · lossless · identical-tokens" in capsys.readouterr().out


def test_the_tools_example_runs_as_written(cluster, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://{cluster.running.http_address}/v1")
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "none")
    runpy.run_path(str(EXAMPLES / "openai_tools.py"))
    said = capsys.readouterr().out
    assert "tool_calls: weather of ['city', 'unit']" in said
    assert "law coupled, claim identical-tokens" in said


def test_the_async_example_runs_as_written(cluster, monkeypatch, capsys):
    monkeypatch.setenv("TRUEDRAFT_ENDPOINT", cluster.running.grpc_address)
    runpy.run_path(str(EXAMPLES / "python_async_client.py"))
    assert capsys.readouterr().out.count("law coupled, claim identical-tokens") == 2
