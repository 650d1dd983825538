"""The command against a fake service: what it prints where, and how it exits."""

import json
from concurrent import futures

import grpc
import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.client import Ask, Client, RequestFailedError
from truedraft.v1 import inference_pb2 as pb
from truedraft.v1 import inference_pb2_grpc

ANSWER = pb.Answer(
    id="id-1",
    model="toy",
    finish_reason=pb.FINISH_REASON_LENGTH,
    usage=pb.Usage(input_tokens=3, output_tokens=2),
    provenance=pb.Provenance(
        effective_law="coupled",
        lossless=True,
        claim="identical-tokens",
        rounds=1,
        draft_tokens=4,
        accepted_tokens=1,
        bonus_tokens=1,
        acceptance_length=2.0,
        fallbacks={"deadline": 1},
        reasons=["A round was decoded without its block."],
        drafters=[pb.Drafter(model="ngram", kind="ngram", replica="r")],
        seed=2**64 - 1,
        trace_id="0af7651916cd43dd8448eb211c80319c",
    ),
)


class FakeService(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self):
        self.request, self.metadata, self.attempts = None, {}, []

    def Generate(self, request, context):  # noqa: N802
        self.request, self.metadata = request, dict(context.invocation_metadata())
        if request.law == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "law 'bad' is not served here.")
        if request.law == "forbidden":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "law 'forbidden' is lossy.")
        if request.law == "busy":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "The queue is full.")
        if request.law == "lost":
            self.attempts.append(request)
            words = ["a", "b", "c", "d"][len(request.resumed_output_ids) :]
            for count, word in enumerate(words):
                if count == 2:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "The verifier was lost.")
                yield pb.GenerateResponse(delta=pb.Delta(text=word, token_ids=[ord(word)], seed=99))
            yield pb.GenerateResponse(answer=ANSWER)
            return
        yield pb.GenerateResponse(delta=pb.Delta(text="hé", token_ids=[1]))
        yield pb.GenerateResponse(delta=pb.Delta(text="llo", token_ids=[2]))
        if request.law != "cut":
            yield pb.GenerateResponse(answer=ANSWER)


@pytest.fixture(scope="module")
def server():
    service = FakeService()
    instance = grpc.server(futures.ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, instance)
    port = instance.add_insecure_port("127.0.0.1:0")
    instance.start()
    yield service, f"127.0.0.1:{port}"
    instance.stop(None)


@pytest.fixture
def generate(server):
    _, endpoint = server
    return lambda *arguments, **options: CliRunner().invoke(
        app, ["generate", "--endpoint", endpoint, *arguments], **options
    )


def test_text_on_stdout_and_provenance_on_stderr(generate):
    result = generate("hi")
    assert result.exit_code == 0
    assert result.stdout == "héllo\n"
    assert "law coupled · lossless · identical-tokens" in result.stderr
    assert "drafted 4, accepted 1 · drafter ngram" in result.stderr
    assert f"seed {2**64 - 1} · trace 0af7651916cd43dd8448eb211c80319c · finish length" in result.stderr
    assert "rounds without their block: deadline 1" in result.stderr
    assert "A round was decoded without its block." in result.stderr


def test_one_json_object(generate):
    result = generate("hi", "--json")
    assert result.exit_code == 0
    content = json.loads(result.stdout)
    assert (content["text"], content["token_ids"], content["finish_reason"]) == ("héllo", [1, 2], "length")
    assert content["usage"] == {"input_tokens": 3, "output_tokens": 2, "cached_input_tokens": 0}
    assert content["provenance"]["seed"] == str(2**64 - 1)
    assert content["provenance"]["correction_tokens"] == 0


def test_every_option_reaches_the_service(generate, server):
    options = {
        "--system": "be brief",
        "--temperature": "0",
        "--top-k": "3",
        "--top-p": "0.9",
        "--min-p": "0.1",
        "--typical-p": "0.8",
        "--eta-cutoff": "0.01",
        "--max-tokens": "5",
        "--seed": "0",
        "--law": "truncation:typical",
        "--model": "toy",
        "--domain": "coding",
    }
    params = ["--law-param", "epsilon=0.1", "--law-param", "delta=2e-1"]
    flat = [part for pair in options.items() for part in pair]
    assert generate("hi", *flat, "--stop", "a", "--stop", "b", *params).exit_code == 0
    assert server[0].request == pb.GenerateRequest(
        messages=[
            pb.ChatMessage(role="system", content="be brief"),
            pb.ChatMessage(role="user", content="hi"),
        ],
        sampling=pb.Sampling(temperature=0, top_k=3, top_p=0.9, min_p=0.1, typical_p=0.8, eta_cutoff=0.01),
        max_tokens=5,
        seed=0,
        law="truncation:typical",
        law_params={"epsilon": 0.1, "delta": 0.2},
        model="toy",
        domain="coding",
        stop=["a", "b"],
    )


def test_what_is_not_given_is_not_sent(generate, server):
    assert generate("hi").exit_code == 0
    assert server[0].request == pb.GenerateRequest(
        messages=[pb.ChatMessage(role="user", content="hi")], sampling=pb.Sampling()
    )


@pytest.mark.parametrize("given", ["beta", "=1", "beta=", "beta=high"])
def test_a_parameter_of_the_law_is_a_name_and_a_number(generate, given):
    result = generate("hi", "--law-param", given)
    assert result.exit_code == 2
    assert f"--law-param takes NAME=NUMBER, got {given!r}." in result.stderr
    assert generate("hi", "--law-param", "a=1", "--law-param", "a=2").exit_code == 2


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_prompt_from_standard_input(generate, server, arguments):
    assert generate("--raw", *arguments, input="from a pipe").exit_code == 0
    assert server[0].request.prompt == "from a pipe"


def test_sampled_trace_context_is_sent(generate, server):
    assert generate("hi").exit_code == 0
    version, trace, span, flags = server[0].metadata["traceparent"].split("-")
    assert (version, len(trace), len(span)) == ("00", 32, 16)
    # The other flags say how the id was drawn.
    assert int(flags, 16) & 1


@pytest.mark.parametrize(
    ("law", "code", "exit_code", "sentence"),
    [
        ("bad", "INVALID_ARGUMENT", 2, "law 'bad' is not served here."),
        ("forbidden", "PERMISSION_DENIED", 2, "law 'forbidden' is lossy."),
        ("busy", "RESOURCE_EXHAUSTED", 1, "The queue is full."),
    ],
)
def test_errors(generate, law, code, exit_code, sentence):
    result = generate("hi", "--law", law)
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", f"{sentence}\n")
    result = generate("hi", "--law", law, "--json")
    assert result.exit_code == exit_code
    assert json.loads(result.stdout) == {"error": {"code": code, "message": sentence}}


def test_an_answer_that_is_cut_off(generate):
    result = generate("hi", "--law", "cut")
    assert result.exit_code == 1
    assert "without an answer" in result.stderr


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "name.invalid:9000"])
def test_nobody_at_the_endpoint(endpoint):
    result = CliRunner().invoke(app, ["generate", "hi", "--endpoint", endpoint])
    assert (result.exit_code, result.stderr) == (1, f"No service answers at {endpoint}.\n")


def test_a_system_message_needs_the_template(generate):
    assert generate("hi", "--raw", "--system", "x").exit_code == 2


def test_serve_names_the_field_at_fault():
    result = CliRunner().invoke(app, ["serve", "--set", "verifier.max_active=0"])
    assert result.exit_code == 2
    assert result.stderr.startswith("verifier.max_active: ")
    result = CliRunner().invoke(app, ["serve", "--drafter", "oracle", "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "INVALID_CONFIG"


def test_serve_takes_all_files_of_the_channel_or_none():
    result = CliRunner().invoke(app, ["serve", "--tls-cert", "a.pem", "--tls-key", "b.pem", "--json"])
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "INVALID_CONFIG"
    assert error["message"].startswith("channel: certificate, private_key and authority go together")


def test_an_answer_that_breaks_off_is_resumed_from_the_tokens_received(server, generate):
    service, _ = server
    result = generate("hi", "--law", "lost")
    assert result.exit_code == 0
    assert result.stdout == "abcd\n"
    first, second = service.attempts
    assert list(second.resumed_output_ids) == [ord("a"), ord("b")]
    assert not first.HasField("seed")
    assert second.seed == 99


def test_no_retries_unless_asked_for(server):
    with Client(server[1]) as client, pytest.raises(RequestFailedError, match="lost"):
        client.answer(Ask(prompt="hi", law="lost"))


@pytest.mark.parametrize(
    ("flag", "value"), [("--seed", "-1"), ("--seed", str(2**64)), ("--max-tokens", str(2**40))]
)
def test_a_value_that_the_wire_cannot_hold_is_named(generate, flag, value):
    result = generate("hi", flag, value)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"The request cannot be sent: {flag[2:].replace('-', '_')}: ")


def test_the_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("truedraft ")


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["bench", "step", "--law", "other"], "INVALID_ARGUMENT", 2),
        (["bench", "int8", "--model", "/nowhere"], "START_FAILED", 1),
        (["plan", "--picture", "/dev/null/plan.svg"], "BAD_PICTURE", 2),
        (["replay", "/nowhere/answer.json"], "BAD_ANSWER", 2),
        (["bench", "domains", "--traffic", "/nowhere"], "INVALID_ARGUMENT", 2),
    ],
)
def test_what_goes_wrong_is_said_in_one_sentence(arguments, code, exit_code):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == exit_code
    error = json.loads(result.stdout)["error"]
    assert error["code"] == code
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
