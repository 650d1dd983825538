"""What the gateway takes, and the one sentence for what it does not."""

import dataclasses

import pytest

from cluster.gateway.errors import Reason
from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.validation import Identity, validate
from cluster.speculation.controls import Controls
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.sampling import Sampling
from tests.gateway.helpers import SPEC, Characters
from truedraft.v1 import inference_pb2 as pb


def check(request, spec=SPEC):
    return validate(request, spec, Characters(), Identity("id", "00-aa-bb-01"))


def refusal(**fields):
    with pytest.raises(InvalidRequestError) as caught:
        check(pb.GenerateRequest(**{"prompt": "hello", **fields}))
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return caught.value


def test_neutral_defaults():
    request = check(pb.GenerateRequest(prompt="hello"))
    assert request.prompt_ids == tuple(b"hello")
    assert request.sampling == Sampling()
    assert request.law == request.requested_law == COUPLED
    assert request.max_tokens == 16
    assert request.stop == ()
    assert (request.request_id, request.traceparent) == ("id", "00-aa-bb-01")


def test_everything_given_is_passed_on():
    request = check(
        pb.GenerateRequest(
            model="toy",
            prompt_ids=[1, 255],
            sampling=pb.Sampling(
                temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, typical_p=0.8, eta_cutoff=0.01
            ),
            max_tokens=64,
            stop=["a", "b"],
            seed=2**64 - 1,
            law="none",
            domain="coding",
        )
    )
    assert request.prompt_ids == (1, 255)
    assert request.sampling == Sampling(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, typical_p=0.8, eta_cutoff=0.01
    )
    assert (request.max_tokens, request.stop, request.seed) == (64, ("a", "b"), 2**64 - 1)
    assert (request.law, request.domain) == (NONE, "coding")


def test_controls_are_passed_on():
    request = check(
        pb.GenerateRequest(
            prompt="x",
            sampling=pb.Sampling(
                repetition_penalty=1.2,
                frequency_penalty=0.5,
                presence_penalty=-0.5,
                logit_bias={9: -100, 3: 2},
            ),
            bad_words=["no", " no"],
            min_tokens=2,
            stop_token_ids=[5],
            ignore_eos=True,
            top_logprobs=0,
            resumed_output_ids=[7, 8],
        )
    )
    assert request.controls == Controls(
        logit_bias=((3, 2.0), (9, -100.0)),
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        bad_words=(tuple(b"no"), tuple(b" no")),
        min_tokens=2,
    )
    assert (request.stop_ids, request.ignore_eos, request.logprobs) == (frozenset({5}), True, 0)
    assert request.resumed_ids == (7, 8)


def test_what_is_forbidden_needs_a_law_that_does_not_emit_it():
    spec = dataclasses.replace(SPEC, laws=("coupled", "collaborative:interpolation"))
    fields = {"prompt": "x", "law": "collaborative:interpolation", "bad_words": ["no"]}
    with pytest.raises(InvalidRequestError, match="give it a ceiling") as caught:
        check(pb.GenerateRequest(**fields, law_params={"lambda": 0.5, "max_distortion": 0.1}), spec)
    assert caught.value.field == "bad_words"
    assert check(pb.GenerateRequest(**fields, law_params={"lambda": 0.5, "ceiling": 2}), spec)


def test_zero_is_a_value_and_not_an_absence():
    request = check(pb.GenerateRequest(prompt="x", sampling=pb.Sampling(temperature=0.0), seed=0))
    assert request.sampling.temperature == 0.0
    assert request.seed == 0


def test_unset_seeds_differ():
    seeds = {check(pb.GenerateRequest(prompt="x")).seed for _ in range(8)}
    assert len(seeds) == 8


def test_messages_go_through_the_chat_template():
    messages = [pb.ChatMessage(role="system", content="s"), pb.ChatMessage(role="user", content="u")]
    assert check(pb.GenerateRequest(messages=messages)).prompt_ids == tuple(b"<system>s<user>u")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt_ids": [1]}, "prompt", "prompt and prompt_ids"),
        ({"messages": [pb.ChatMessage(role="user", content="x")]}, "prompt", "prompt and messages"),
        ({"prompt": "", "prompt_ids": [256]}, "prompt_ids", "256 is outside the vocabulary of 256"),
        ({"law": "rejection"}, "law", "'rejection' is not served here; served laws: none, coupled"),
        ({"law": "rumour"}, "law", "'rumour' is not served here; served laws: none, coupled"),
        ({"law": "coupled", "law_params": {"min_p": 0.1}}, "law_params", "coupled has no parameter 'min_p'"),
        ({"law_params": {"beta": 1}}, "law_params", "coupled has no parameter 'beta'"),
        ({"law": "truncation:min_p", "law_params": {"min_p": 2}}, "law_params", "min_p must be"),
        ({"law": "truncation:min_p", "law_params": {"min_p": float("nan")}}, "law_params", "got nan"),
        ({"law": "truncation:min_p", "law_params": {"x": 0.1}}, "law_params", "its parameters: min_p"),
        ({"law": "collaborative:lenience"}, "law_params", "needs lenience or max_distortion"),
        ({"law": "collaborative:cactus", "law_params": {"delta": 1}}, "law_params", "needs a ceiling"),
        ({"model": "other"}, "model", "served: 'toy'"),
        ({"sampling": pb.Sampling(temperature=-1)}, "sampling.temperature", "temperature must be"),
        ({"sampling": pb.Sampling(temperature=float("nan"))}, "sampling.temperature", "got nan"),
        ({"sampling": pb.Sampling(temperature=float("inf"))}, "sampling.temperature", "got inf"),
        ({"sampling": pb.Sampling(top_p=0)}, "sampling.top_p", "top_p must be above 0"),
        ({"sampling": pb.Sampling(top_p=float("nan"))}, "sampling.top_p", "got nan"),
        ({"sampling": pb.Sampling(top_k=-1)}, "sampling.top_k", "top_k must be at least 0"),
        ({"sampling": pb.Sampling(min_p=1)}, "sampling.min_p", "below 1"),
        ({"sampling": pb.Sampling(min_p=-0.1)}, "sampling.min_p", "at least 0"),
        ({"sampling": pb.Sampling(typical_p=0)}, "sampling.typical_p", "above 0"),
        ({"sampling": pb.Sampling(eta_cutoff=1)}, "sampling.eta_cutoff", "below 1"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_tokens": -5}, "max_tokens", "got -5"),
        ({"max_tokens": 65}, "max_tokens", "at most 64"),
        ({"prompt": "x" * 100}, "prompt", "100 tokens does not fit the context of 100"),
        ({"prompt": "x" * 101}, "prompt", "does not fit"),
        ({"prompt": "x" * 6401}, "prompt", "at most 6400 characters here, this one has 6401"),
        ({"model": "m" * 100_000}, "model", "m" * 80 + "…' is not served"),
        ({"law": "l" * 100_000}, "law", "l" * 80 + "…' is not served"),
        ({"prompt": "x" * 90, "max_tokens": 11}, "max_tokens", "leaves 10 of the context's 100"),
        ({"stop": [""]}, "stop", "must not be empty"),
        ({"stop": ["a", "b", "c"]}, "stop", "at most 2"),
        ({"stop": ["x" * 257]}, "stop", "at most 256"),
        ({"domain": "x" * 65}, "domain", "at most 64"),
        ({"sampling": pb.Sampling(logit_bias={256: 1})}, "sampling.logit_bias", "256 is outside"),
        ({"sampling": pb.Sampling(logit_bias={1: 101})}, "sampling.logit_bias", "between -100 and 100"),
        ({"sampling": pb.Sampling(logit_bias={1: float("nan")})}, "sampling.logit_bias", "got nan"),
        ({"sampling": pb.Sampling(repetition_penalty=0)}, "sampling.repetition_penalty", "above 0"),
        ({"sampling": pb.Sampling(frequency_penalty=3)}, "sampling.frequency_penalty", "-2 and 2"),
        ({"sampling": pb.Sampling(presence_penalty=-3)}, "sampling.presence_penalty", "-2 and 2"),
        ({"bad_words": [" "]}, "bad_words", "must not be empty"),
        ({"bad_words": ["x"] * 257}, "bad_words", "at most 256"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "more than the 5 of max_tokens"),
        ({"stop_token_ids": [256]}, "stop_token_ids", "256 is outside"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "at most 64"),
        ({"top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"top_logprobs": -1}, "top_logprobs", "got -1"),
        ({"n": 0}, "n", "between 1 and 16"),
        ({"n": 10**9}, "n", "got 1000000000"),
        ({"n": 2, "resumed_output_ids": [1]}, "n", "one answer is resumed"),
        ({"resumed_output_ids": [1] * 6, "max_tokens": 5}, "resumed_output_ids", "more than the 5"),
        ({"response_format": pb.ResponseFormat(json_schema="{")}, "response_format", "not JSON"),
        ({"response_format": pb.ResponseFormat(json_schema="[]")}, "response_format", "must be an object"),
        (
            {"response_format": pb.ResponseFormat(json_schema='{"type": "strang"}')},
            "response_format",
            "strang",
        ),
        (
            {"response_format": pb.ResponseFormat(json_schema='{"items": ' * 200 + "{}" + "}" * 200)},
            "response_format",
            "recursion limit",
        ),
        ({"response_format": pb.ResponseFormat(regex="[a")}, "response_format", "regex cannot be served"),
        ({"response_format": pb.ResponseFormat(regex="a" * 65537)}, "response_format", "at most 65536"),
        (
            {"response_format": pb.ResponseFormat(json_object=True), "min_tokens": 2},
            "min_tokens",
            "contradicts response_format",
        ),
        ({"resumed_output_ids": [256]}, "resumed_output_ids", "256 is outside"),
    ],
)
def test_refused_in_one_sentence_that_names_the_field(fields, field, words):
    error = refusal(**fields)
    assert error.field == field
    assert words.lower() in str(error).lower()


def test_a_lossy_law_needs_the_deployments_leave_and_the_requests():
    request = check(pb.GenerateRequest(prompt="x", law="truncation:min_p", law_params={"min_p": 0.2}))
    assert request.law == request.requested_law == Law("truncation:min_p", (("min_p", 0.2),))
    assert refusal(law="rumour").reason is Reason.INVALID_ARGUMENT
    for law, params, alternative in (
        ("collaborative:lenience", {"lenience": 0.5}, "strict laws rejection and block"),
        ("truncation:typical", {}, "eta_cutoff"),
    ):
        error = refusal(law=law, law_params=params)
        assert error.reason is Reason.LAW_NOT_ALLOWED
        assert error.field == "law"
        assert "lossy" in str(error)
        assert alternative in str(error)
    strict = dataclasses.replace(SPEC, laws=("none", "coupled"))
    with pytest.raises(InvalidRequestError, match=r"min_p=0\.2"):
        check(pb.GenerateRequest(prompt="x", law="truncation:min_p", law_params={"min_p": 0.2}), strict)


CEILINGS = dataclasses.replace(
    SPEC, laws=("coupled", "truncation:min_p", "collaborative:cactus"), max_distortion=0.1, max_overshoot=4.0
)


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        # What the request leaves open is held to the ceilings, what lies below them stays.
        ({"delta": 0.01, "ceiling": 2.0}, {"delta": 0.01, "ceiling": 2.0, "max_distortion": 0.1}),
        ({"max_distortion": 0.05}, {"ceiling": 4.0, "max_distortion": 0.05}),
        ({"max_distortion": 0.1, "ceiling": 4.0}, {"ceiling": 4.0, "max_distortion": 0.1}),
    ],
)
def test_a_lossy_law_goes_no_further_than_the_deployments_ceilings(asked, held):
    given = pb.GenerateRequest(prompt="x", law="collaborative:cactus", law_params=asked)
    assert dict(check(given, CEILINGS).law.params) == held
    assert (
        dict(check(given, dataclasses.replace(CEILINGS, max_distortion=None, max_overshoot=None)).law.params)
        == asked
    )
    assert check(pb.GenerateRequest(prompt="x"), CEILINGS).law == COUPLED


@pytest.mark.parametrize(
    ("law", "params", "field", "words"),
    [
        (
            "collaborative:cactus",
            {"max_distortion": 0.11},
            "law_params",
            "max_distortion may be at most 0.1 here",
        ),
        (
            "collaborative:cactus",
            {"delta": 1, "ceiling": 5},
            "law_params",
            "ceiling may be at most 4 here, got 5",
        ),
        ("truncation:min_p", {}, "law", "takes no max_distortion, of which at most 0.1 is allowed here"),
    ],
)
def test_beyond_the_ceilings_it_is_refused(law, params, field, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        check(pb.GenerateRequest(prompt="x", law=law, law_params=params), CEILINGS)
    assert caught.value.field == field
    assert caught.value.reason is Reason.LAW_NOT_ALLOWED


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([("robot", "x")], "messages[0] has the role 'robot'"),
        ([("user", "")], "empty"),
        ([("system", "s"), ("user", "")], "last message"),
        ([("assistant", "x")], "the first turn is the user's"),
    ],
)
def test_conversations_refused(messages, words):
    turns = [pb.ChatMessage(role=role, content=content) for role, content in messages]
    error = refusal(prompt="", messages=turns)
    assert error.field == "messages"
    assert words.lower() in str(error).lower()


def test_unset_max_tokens_is_clipped_to_what_is_left():
    assert check(pb.GenerateRequest(prompt="x" * 95)).max_tokens == 5
    assert check(pb.GenerateRequest(prompt="x" * 99)).max_tokens == 1
    tight = dataclasses.replace(SPEC, max_tokens=4)
    assert check(pb.GenerateRequest(prompt="x"), tight).max_tokens == 4


def test_the_context_can_be_filled_exactly():
    assert check(pb.GenerateRequest(prompt="x" * 90, max_tokens=10)).max_tokens == 10


def test_a_field_that_is_not_known_is_refused_and_not_dropped():
    later = pb.GenerateRequest.FromString(b"\xf8\x7f\x01")
    later.prompt = "x"
    with pytest.raises(InvalidRequestError, match="Field 2047 is not known here") as caught:
        check(later)
    assert caught.value.reason is Reason.UNKNOWN_PARAMETER
    nested = pb.GenerateRequest(prompt="x", sampling=pb.Sampling.FromString(b"\xf8\x7f\x01"))
    with pytest.raises(InvalidRequestError, match="Field 2047 of sampling"):
        check(nested)
    unknown = b"\xf8\x7f\x01"
    turn = pb.ChatMessage(tool_calls=[pb.ToolCall.FromString(unknown)])
    for fields, name in (
        ({"messages": [pb.ChatMessage.FromString(unknown)]}, "messages"),
        ({"messages": [turn]}, "messages"),
        ({"tools": [pb.Tool.FromString(unknown)]}, "tools"),
        ({"tool_choice": pb.ToolChoice.FromString(unknown)}, "tool_choice"),
    ):
        with pytest.raises(InvalidRequestError, match=f"Field 2047 of {name}"):
            check(pb.GenerateRequest(prompt="x", **fields))


def test_an_adapter_is_a_model_of_its_own():
    spec = dataclasses.replace(SPEC, adapters=("rhyme",))

    def adapter_of(model):
        return check(pb.GenerateRequest(prompt="hello", model=model), spec).adapter

    assert [adapter_of(model) for model in ("", "toy", "rhyme")] == ["", "", "rhyme"]
    with pytest.raises(InvalidRequestError, match="'prose' is not served here; served: 'toy', 'rhyme'"):
        adapter_of("prose")
