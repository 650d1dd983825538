"""Peers are asked over real HTTP; ratios are of neighbours; who cannot take part is named with a reason."""

import io
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from cluster.bench.machine import Machine
from cluster.bench.peers.endpoint import Endpoint
from cluster.bench.peers.measuring import CLUSTER, GENERATE, TRAINED, VLLM, findings, loads, measure
from cluster.bench.peers.report import Outcome, as_dict, draw, render
from cluster.bench.peers.vllm import PeerMissingError, vllm
from cluster.bench.prompts import KINDS, VARIED
from cluster.bench.speed.peer import Reply, family

MACHINE = Machine("processor", 2, 2, "torch", 1e9)


class Chat(BaseHTTPRequestHandler):
    """Two chunks of text and the usage, or what the server is told to do instead."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if self.server.failing:
            self.send_error(503, "busy")
            return
        self.send_response(200)
        self.end_headers()
        delta = {"choices": [{"delta": {"content": "word"}}]}
        chunks = [{"choices": [{"delta": {"role": "assistant"}}]}, delta, delta]
        if self.server.breaking:
            chunks.append({"error": {"message": "The verifier was lost."}})
        elif not self.server.silent:
            chunks.append({"choices": [], "usage": {"completion_tokens": 7}})
        for chunk in chunks:
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as made, ThreadPoolExecutor(1) as pool:
        made.asked, made.failing, made.silent, made.breaking = [], False, False, False
        pool.submit(made.serve_forever)
        yield made
        made.shutdown()


def endpoint(server):
    url = f"http://127.0.0.1:{server.server_port}"
    return Endpoint("somebody", url, "target", 1, extra={"truedraft": {"law": "none"}})


def test_an_endpoint_is_asked_for_all_at_once(server):
    prompts = [f"question {number}" for number in range(9)]
    replies = endpoint(server).ask(prompts, 32)
    assert [reply.tokens for reply in replies] == [7] * 9
    assert all(0.0 < reply.first <= reply.seconds for reply in replies)
    assert sorted(body["messages"][0]["content"] for body in server.asked) == prompts
    assert {(body["max_tokens"], body["temperature"]) for body in server.asked} == {(32, 0.0)}
    assert all(body["truedraft"] == {"law": "none"} for body in server.asked)


@pytest.mark.parametrize(
    ("fault", "words"), [("failing", "503"), ("silent", "how many tokens"), ("breaking", "verifier was lost")]
)
def test_an_answer_that_fails_is_no_figure(server, fault, words):
    setattr(server, fault, True)
    with pytest.raises(RuntimeError, match=words):
        endpoint(server).ask(["question"], 32)


def test_prompts_of_a_load_all_differ():
    *single, many = loads([64])
    assert [load.prompts for load in single] == [(prompt,) for prompt in KINDS.values()]
    assert len(set(many.prompts)) == 64
    assert many.prompts[: len(VARIED)] == VARIED


class Steady:
    """Answers with so many tokens a second."""

    def __init__(self, name, rate, most=0):
        self.name, self.rate, self.most = name, rate, most

    def ask(self, prompts, tokens):
        return [Reply(tokens, None, len(prompts) * tokens / self.rate) for _ in prompts]


def test_ratios_are_of_neighbours_and_loads_too_large_are_left_out():
    ours, theirs, lookup = Steady(CLUSTER, 30.0), Steady(VLLM, 20.0), Steady("lookup", 10.0, most=1)
    measured = measure([ours, theirs, lookup], loads([16]), 32, 3, lambda _: None)
    found = {each.load: each for each in findings(measured)}
    assert set(found) == {"geometric mean", *KINDS, "16"}
    assert all(each.ratio.median == pytest.approx(1.5) for each in found.values())
    assert {each.verdict for each in found.values()} == {"met"}
    assert {each.load for each in measured if each.peer == "lookup"} == set(KINDS)
    other = {CLUSTER: VLLM, VLLM: CLUSTER}
    swapped = [replace(each, peer=other.get(each.peer, each.peer)) for each in measured]
    assert {each.verdict for each in findings(swapped)} == {"missed"}


def test_the_trained_drafter_is_promised_more():
    measured = measure([Steady(TRAINED, 30.0), Steady(VLLM, 20.0)], loads([]), 8, 3, lambda _: None)
    [found] = findings(measured)
    assert (found.load, found.factor, found.verdict) == ("geometric mean", 2.0, "missed")


def test_memory_is_that_of_the_server_without_the_other_peers():
    with subprocess.Popen(["sleep", "60"]) as stranger, subprocess.Popen(["sleep", "60"]) as own:
        before = family(os.getpid()) - {own.pid}
        assert stranger.pid in before
        alone = Endpoint("ours", "", "", os.getpid(), before).memory()
        everything = Endpoint("ours", "", "", os.getpid()).memory()
        for each in (stranger, own):
            each.kill()
    assert 0 < alone < 2**24 < everything


def test_everything_is_reported(tmp_path):
    measured = measure([Steady(CLUSTER, 30.0)], loads([4]), 8, 2, lambda _: None)
    outcome = Outcome(MACHINE, "model", 8, measured, {CLUSTER: 2**20}, {"vLLM": "It is not installed."})
    assert json.loads(json.dumps(as_dict(outcome)))["missing"] == {"vLLM": "It is not installed."}
    draw(outcome, tmp_path / "peers.svg")
    assert (tmp_path / "peers.svg").stat().st_size > 1000


def test_a_terminal_of_80_columns_shows_every_figure_whole():
    names = [GENERATE, "in-process coupled n-gram", TRAINED, CLUSTER, VLLM]
    peers = [Steady(name, 1234.5, most=1 if name is GENERATE else 0) for name in names]
    measured = measure(peers, loads([16, 64]), 32, 3, lambda _: None)
    console = Console(width=80, file=io.StringIO())
    render(Outcome(MACHINE, "model", 32, measured, dict.fromkeys(names, 2**31), {}), console)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert all(kind in shown for kind in KINDS)
    assert shown.count("2048") == len(names)
    # Each kind and the mean; then one at a time, 16 and 64, of all that take as many.
    assert shown.count("1234.5") == len(names) * (len(KINDS) + 1) + 3 * len(names) - 2


def test_who_is_not_installed_is_named_with_the_reason(tmp_path):
    with (
        pytest.raises(PeerMissingError, match="No such file"),
        vllm(tmp_path / "vllm", "x", "float32", False),
    ):
        pass


def test_a_server_that_does_not_come_up_is_named_with_what_it_said_last(tmp_path):
    command = tmp_path / "vllm"
    command.write_text("#!/bin/sh\necho no model there >&2\nexit 1\n")
    command.chmod(0o755)
    with pytest.raises(PeerMissingError, match="no model there"), vllm(command, "x", "float32", True):
        pass
