"""A request's parameters beside its prompt: each in range, or one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from cluster.gateway.invalid import InvalidRequestError
from cluster.gateway.prompting import Prompting
from cluster.speculation.catalogue import LAWS
from cluster.speculation.controls import Controls
from cluster.speculation.law import Law
from cluster.speculation.sampling import Sampling
from truedraft.v1 import inference_pb2 as pb

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
_MAX_STOP_CHARACTERS = 256
_MAX_STOP_TOKENS = 64
_MAX_BAD_WORDS = 256
_MAX_BIASES = 1024
_SAMPLING = frozenset(field.name for field in fields(Sampling))


def sampling_of(request: pb.GenerateRequest) -> Sampling:
    """Raises InvalidRequestError, as all functions here do."""
    given = {field.name: value for field, value in request.sampling.ListFields() if field.name in _SAMPLING}
    try:
        return Sampling(**given)
    except ValueError as error:
        # Its messages begin with the field's name.
        raise InvalidRequestError(f"sampling.{str(error).partition(' ')[0]}", str(error)) from None


def controls_of(request: pb.GenerateRequest, prompting: Prompting) -> Controls:
    """What looks at the tokens before a position."""
    sampling = request.sampling
    bias = tuple(sorted(sampling.logit_bias.items()))
    if len(bias) > _MAX_BIASES:
        sentence = f"logit_bias takes at most {_MAX_BIASES} tokens, got {len(bias)}"
        raise InvalidRequestError("sampling.logit_bias", sentence)
    check_tokens("sampling.logit_bias", (token for token, _ in bias), prompting.vocab_size)
    penalties = {
        name: getattr(sampling, name)
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
        if sampling.HasField(name)
    }
    words = _bad_words(request.bad_words, prompting)
    try:
        controls = Controls(bias, bad_words=words, min_tokens=request.min_tokens, **penalties)
    except ValueError as error:
        name = str(error).partition(" ")[0]
        field = name if name == "min_tokens" else f"sampling.{name}"
        raise InvalidRequestError(field, str(error)) from None
    return controls


def check_forbids(controls: Controls, grammar: str, law: Law) -> None:
    """Whether the law keeps away from what is forbidden: out(x) is at most its ceiling times p(x)."""
    names = (
        ("response_format", grammar),
        ("bad_words", controls.bad_words),
        ("min_tokens", controls.min_tokens),
    )
    given = [name for name, value in names if value]
    if given and LAWS[law.name].capped and law.param("ceiling") is None:
        sentence = f"{given[0]} forbids tokens that law {law} may emit all the same; give it a ceiling"
        raise InvalidRequestError(given[0], sentence)


def check_lengths(request: pb.GenerateRequest, max_tokens: int) -> None:
    """Whether the numbers of tokens agree. max_tokens: as it holds for the request."""
    if request.min_tokens > max_tokens:
        sentence = f"min_tokens is {request.min_tokens}, more than the {max_tokens} of max_tokens"
        raise InvalidRequestError("min_tokens", sentence)
    resumed = len(request.resumed_output_ids)
    # As many are a whole answer whose end was lost.
    if resumed > max_tokens:
        sentence = f"the {resumed} resumed tokens are more than the {max_tokens} of max_tokens"
        raise InvalidRequestError("resumed_output_ids", sentence)


def stop_of(stop: Sequence[str], limit: int) -> tuple[str, ...]:
    """limit: how many are taken."""
    if len(stop) > limit:
        raise InvalidRequestError("stop", f"at most {limit} stop strings are taken, got {len(stop)}")
    for text in stop:
        if not text:
            raise InvalidRequestError("stop", "a stop string must not be empty")
        if len(text) > _MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                "stop", f"a stop string may have at most {_MAX_STOP_CHARACTERS} characters"
            )
    return tuple(stop)


def stop_ids_of(request: pb.GenerateRequest, vocab_size: int) -> frozenset[int]:
    """vocab_size: ids at or above it are none."""
    if len(request.stop_token_ids) > _MAX_STOP_TOKENS:
        sentence = f"at most {_MAX_STOP_TOKENS} stop tokens are taken, got {len(request.stop_token_ids)}"
        raise InvalidRequestError("stop_token_ids", sentence)
    check_tokens("stop_token_ids", request.stop_token_ids, vocab_size)
    return frozenset(request.stop_token_ids)


def logprobs_of(request: pb.GenerateRequest) -> int | None:
    """How many alternatives are told, None for no log-probabilities."""
    if not request.HasField("top_logprobs"):
        return None
    if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
        sentence = f"top_logprobs must lie between 0 and {MAX_TOP_LOGPROBS}, got {request.top_logprobs}"
        raise InvalidRequestError("top_logprobs", sentence)
    return request.top_logprobs


def choices_of(request: pb.GenerateRequest) -> int:
    """How many answers are asked for."""
    asked = request.n if request.HasField("n") else 1
    if not 1 <= asked <= MAX_CHOICES:
        raise InvalidRequestError("n", f"n must lie between 1 and {MAX_CHOICES}, got {asked}")
    if asked > 1 and request.resumed_output_ids:
        raise InvalidRequestError("n", "one answer is resumed at a time: n must be 1")
    return asked


def check_tokens(field: str, tokens: Iterable[int], vocab_size: int) -> None:
    """Whether all are in the vocabulary."""
    for token in tokens:
        if token >= vocab_size:
            sentence = f"token {token} is outside the vocabulary of {vocab_size} tokens"
            raise InvalidRequestError(field, sentence)


def _bad_words(words: Sequence[str], prompting: Prompting) -> tuple[tuple[int, ...], ...]:
    if len(words) > _MAX_BAD_WORDS:
        raise InvalidRequestError(
            "bad_words", f"at most {_MAX_BAD_WORDS} bad words are taken, got {len(words)}"
        )
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip():
            raise InvalidRequestError("bad_words", "a bad word must not be empty")
        if len(word) > _MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                "bad_words", f"a bad word may have at most {_MAX_STOP_CHARACTERS} characters"
            )
        for text in (word, f" {word.lstrip(' ')}"):
            if tokens := prompting.encode_inside(text):
                sequences.setdefault(tuple(tokens))
    return tuple(sequences)
