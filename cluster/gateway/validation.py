"""From a client's GenerateRequest to a GenerationRequest, or one sentence that says what is wrong. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.unknown_fields import UnknownFieldSet

from cluster.gateway.errors import Reason, RequestError
from cluster.gateway.prompting import ConversationError, Prompting
from cluster.gateway.spec import GatewaySpec
from cluster.speculation.catalogue import LAWS, honest_alternative, parse
from cluster.speculation.law import Law
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from truedraft.v1 import inference_pb2 as pb

ROLES = ("system", "user", "assistant", "tool")
_MAX_LABEL = 64
# Longer prompts are refused unseen: tokenising them would hold up the others.
_CHARACTERS_PER_TOKEN = 64
_QUOTED_CHARACTERS = 80
_MAX_STOP_CHARACTERS = 256


class InvalidRequestError(RequestError):
    """field: the request's field at fault; the message is one sentence for the client."""

    def __init__(self, field: str, sentence: str, reason: Reason = Reason.INVALID_ARGUMENT) -> None:
        # A field's name stays as it is written.
        if not field or not sentence.startswith(field.rpartition(".")[2]):
            sentence = sentence[:1].upper() + sentence[1:]
        super().__init__(reason, f"{sentence}.", field)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking: a new request's id and the trace context of its root span."""

    request_id: str
    traceparent: str = ""


def validate(
    request: pb.GenerateRequest, spec: GatewaySpec, prompting: Prompting, identity: Identity
) -> GenerationRequest:
    """Cheap checks first, so that a bad request costs no tokenising. Raises InvalidRequestError."""
    _check_known(request)
    check_model(request.model, spec.served_name)
    law = _law(request, spec)
    sampling = sampling_of(request.sampling)
    asked = request.max_tokens if request.HasField("max_tokens") else None
    _check_max_tokens(asked, spec.max_tokens)
    stop = _stop(request.stop, spec.max_stop_strings)
    if len(request.domain) > _MAX_LABEL:
        raise InvalidRequestError("domain", f"domain must be a label of at most {_MAX_LABEL} characters")
    prompt_ids = prompt_ids_of(request, prompting)
    return GenerationRequest(
        request_id=identity.request_id,
        prompt_ids=prompt_ids,
        sampling=sampling,
        law=law,
        requested_law=law,
        seed=request.seed if request.HasField("seed") else secrets.randbits(64),
        max_tokens=_max_tokens(asked, len(prompt_ids), spec, prompting.context_length),
        stop=stop,
        domain=request.domain,
        traceparent=identity.traceparent,
        seed_drawn=not request.HasField("seed"),
    )


def _check_known(request: pb.GenerateRequest) -> None:
    """A field of a later version, or a mistaken one, must not be left out without a word."""
    for name, message in (("", request), ("sampling", request.sampling)):
        unknown = UnknownFieldSet(message)
        if len(unknown):
            where = f" of {name}" if name else ""
            sentence = f"field {unknown[0].field_number}{where} is not known here"
            raise InvalidRequestError(name, sentence, Reason.UNKNOWN_PARAMETER)


def _short(name: str) -> str:
    """A name of the client's, quoted: what it sends may be longer than a status can carry."""
    return repr(name if len(name) <= _QUOTED_CHARACTERS else name[:_QUOTED_CHARACTERS] + "…")


def check_model(model: str, served: str) -> None:
    """Empty is the served one. Raises InvalidRequestError."""
    if model and model != served:
        sentence = f"model {_short(model)} is not served here; served: {served!r}"
        raise InvalidRequestError("model", sentence, Reason.MODEL_NOT_FOUND)


def _law(request: pb.GenerateRequest, spec: GatewaySpec) -> Law:
    chosen = request.law or spec.default_law
    if chosen not in spec.laws and (chosen not in LAWS or LAWS[chosen].lossless):
        raise InvalidRequestError(
            "law", f"law {_short(chosen)} is not served here; served laws: {', '.join(spec.laws)}"
        )
    try:
        law = parse(chosen, request.law_params)
    except ValueError as error:
        raise InvalidRequestError("law_params", f"law {error}") from None
    if chosen not in spec.laws:
        alternative = honest_alternative(law).rstrip(".")
        sentence = f"law {chosen!r} is lossy and this deployment does not allow it: {alternative}"
        raise InvalidRequestError("law", sentence, Reason.LAW_NOT_ALLOWED)
    return law


def sampling_of(sampling: pb.Sampling) -> Sampling:
    """Raises InvalidRequestError."""
    given = {field.name: value for field, value in sampling.ListFields()}
    try:
        return Sampling(**given)
    except ValueError as error:
        # Its messages begin with the field's name.
        raise InvalidRequestError(f"sampling.{str(error).partition(' ')[0]}", str(error)) from None


def _check_max_tokens(asked: int | None, limit: int | None) -> None:
    if asked is None:
        return
    if asked < 1:
        raise InvalidRequestError("max_tokens", f"max_tokens must be at least 1, got {asked}")
    if limit is not None and asked > limit:
        raise InvalidRequestError("max_tokens", f"max_tokens may be at most {limit} here, got {asked}")


def _stop(stop: Sequence[str], limit: int) -> tuple[str, ...]:
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


def prompt_ids_of(request: pb.GenerateRequest, prompting: Prompting) -> tuple[int, ...]:
    """Raises InvalidRequestError."""
    given = [name for name in ("prompt", "prompt_ids", "messages") if len(getattr(request, name))]
    if not given:
        raise InvalidRequestError(
            "prompt", "the prompt is empty; send one of prompt, prompt_ids and messages"
        )
    if len(given) > 1:
        sentence = f"exactly one of prompt, prompt_ids and messages is taken, got {' and '.join(given)}"
        raise InvalidRequestError("prompt", sentence)
    if request.prompt_ids:
        for token in request.prompt_ids:
            if token >= prompting.vocab_size:
                sentence = f"prompt id {token} is outside the vocabulary of {prompting.vocab_size} tokens"
                raise InvalidRequestError("prompt_ids", sentence)
        return tuple(request.prompt_ids)
    texts = [message.content for message in request.messages] or [request.prompt]
    characters, limit = sum(map(len, texts)), _CHARACTERS_PER_TOKEN * prompting.context_length
    if characters > limit:
        sentence = f"a prompt may have at most {limit} characters here, this one has {characters}"
        raise InvalidRequestError("prompt", sentence, Reason.CONTEXT_LENGTH_EXCEEDED)
    if request.messages:
        return _chat_ids(request.messages, prompting)
    ids = prompting.encode(request.prompt)
    if not ids:
        raise InvalidRequestError("prompt", "the prompt has no tokens")
    return tuple(ids)


def _chat_ids(messages: Sequence[pb.ChatMessage], prompting: Prompting) -> tuple[int, ...]:
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            sentence = f"messages[{index}] has the role {_short(message.role)}; roles are {', '.join(ROLES)}"
            raise InvalidRequestError("messages", sentence)
    if not messages[-1].content:
        raise InvalidRequestError("messages", "the prompt is empty; the last message needs content")
    try:
        return tuple(prompting.encode_chat([(message.role, message.content) for message in messages]))
    except ConversationError as error:
        raise InvalidRequestError("messages", str(error)) from None


def _max_tokens(asked: int | None, prompt: int, spec: GatewaySpec, context: int) -> int:
    room = context - prompt
    if room < 1:
        sentence = f"the prompt of {prompt} tokens does not fit the context of {context}"
        raise InvalidRequestError("prompt", sentence, Reason.CONTEXT_LENGTH_EXCEEDED)
    if asked is None:
        return min(spec.default_max_tokens, spec.max_tokens or room, room)
    if asked > room:
        sentence = (
            f"max_tokens is {asked}, but a prompt of {prompt} tokens leaves {room} of the context's {context}"
        )
        raise InvalidRequestError("max_tokens", sentence, Reason.CONTEXT_LENGTH_EXCEEDED)
    return asked
