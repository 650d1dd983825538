"""From a client's GenerateRequest to a GenerationRequest, or one sentence that says what is wrong. Pure."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from cluster.gateway.errors import Reason
from cluster.gateway.grammar import grammar_of
from cluster.gateway.invalid import InvalidRequestError, short
from cluster.gateway.parameters import (
    check_forbids,
    check_lengths,
    check_tokens,
    choices_of,
    controls_of,
    logprobs_of,
    sampling_of,
    stop_ids_of,
    stop_of,
)
from cluster.gateway.prompting import ConversationError, Prompting
from cluster.gateway.spec import GatewaySpec
from cluster.gateway.tools.conversation import Call, Turn
from cluster.gateway.tools.offer import offer_of
from cluster.speculation.catalogue import LAWS, honest_alternative, parse
from cluster.speculation.law import Law
from cluster.speculation.request import GenerationRequest
from truedraft.v1 import inference_pb2 as pb

ROLES = ("system", "user", "assistant", "tool")
_MAX_LABEL = 64
# Longer prompts are refused unseen: tokenising them would hold up the others.
_CHARACTERS_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking: a new request's id, the trace context of its root span, and the tenant's name."""

    request_id: str
    traceparent: str = ""
    tenant: str = ""


def validate(
    request: pb.GenerateRequest, spec: GatewaySpec, prompting: Prompting, identity: Identity
) -> GenerationRequest:
    """Cheap checks first, so that a bad request costs no tokenising. Raises InvalidRequestError."""
    _check_known(request)
    check_model(request.model, spec)
    law = _law(request, spec)
    sampling = sampling_of(request)
    asked = request.max_tokens if request.HasField("max_tokens") else None
    _check_max_tokens(asked, spec.max_tokens)
    stop = stop_of(request.stop, spec.max_stop_strings)
    stop_ids, logprobs = stop_ids_of(request, prompting.vocab_size), logprobs_of(request)
    check_tokens("resumed_output_ids", request.resumed_output_ids, prompting.vocab_size)
    choices_of(request)
    if len(request.domain) > _MAX_LABEL:
        raise InvalidRequestError("domain", f"domain must be a label of at most {_MAX_LABEL} characters")
    grammar = grammar_of(request)
    controls = controls_of(request, prompting)
    check_forbids(controls, grammar, law)
    prompt_ids = prompt_ids_of(request, prompting)
    max_tokens = _max_tokens(asked, len(prompt_ids), spec, prompting.context_length)
    check_lengths(request, max_tokens)
    return GenerationRequest(
        request_id=identity.request_id,
        prompt_ids=prompt_ids,
        sampling=sampling,
        law=law,
        requested_law=law,
        seed=request.seed if request.HasField("seed") else secrets.randbits(64),
        max_tokens=max_tokens,
        stop=stop,
        domain=request.domain,
        traceparent=identity.traceparent,
        tenant=identity.tenant,
        seed_drawn=not request.HasField("seed"),
        controls=controls,
        stop_ids=stop_ids,
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        resumed_ids=tuple(request.resumed_output_ids),
        grammar=grammar,
        adapter=request.model if request.model in spec.adapters else "",
    )


def _check_known(request: pb.GenerateRequest) -> None:
    """A field of a later version, or a mistaken one, must not be left out without a word."""
    parts: list[tuple[str, Message]] = [
        ("", request),
        ("sampling", request.sampling),
        ("response_format", request.response_format),
        ("tool_choice", request.tool_choice),
    ]
    parts += [("tools", tool) for tool in request.tools]
    for turn in request.messages:
        parts += [("messages", turn), *(("messages", call) for call in turn.tool_calls)]
    for name, message in parts:
        unknown = UnknownFieldSet(message)
        if len(unknown):
            where = f" of {name}" if name else ""
            sentence = f"field {unknown[0].field_number}{where} is not known here"
            raise InvalidRequestError(name, sentence, Reason.UNKNOWN_PARAMETER)


def check_model(model: str, spec: GatewaySpec) -> None:
    """Empty is the served one without an adapter. Raises InvalidRequestError."""
    if model and model not in spec.models:
        served = ", ".join(map(repr, spec.models))
        sentence = f"model {short(model)} is not served here; served: {served}"
        raise InvalidRequestError("model", sentence, Reason.MODEL_NOT_FOUND)


def _law(request: pb.GenerateRequest, spec: GatewaySpec) -> Law:
    chosen = request.law or spec.default_law
    if chosen not in spec.laws and (chosen not in LAWS or LAWS[chosen].lossless):
        raise InvalidRequestError(
            "law", f"law {short(chosen)} is not served here; served laws: {', '.join(spec.laws)}"
        )
    try:
        law = parse(chosen, request.law_params)
    except ValueError as error:
        raise InvalidRequestError("law_params", f"law {error}") from None
    if chosen not in spec.laws:
        alternative = honest_alternative(law).rstrip(".")
        sentence = f"law {chosen!r} is lossy and this deployment does not allow it: {alternative}"
        raise InvalidRequestError("law", sentence, Reason.LAW_NOT_ALLOWED)
    return law if LAWS[chosen].lossless else _held(law, spec)


def _held(law: Law, spec: GatewaySpec) -> Law:
    """A lossy law under the deployment's ceilings, which also stand where the request says nothing."""
    takes = {parameter.name for parameter in LAWS[law.name].parameters}
    given = dict(law.params)
    for name, most in (("max_distortion", spec.max_distortion), ("ceiling", spec.max_overshoot)):
        if most is None:
            continue
        if name not in takes:
            sentence = f"law {law.name!r} takes no {name}, of which at most {most:g} is allowed here"
            raise InvalidRequestError("law", sentence, Reason.LAW_NOT_ALLOWED)
        if given.setdefault(name, most) > most:
            sentence = f"law {law.name}: {name} may be at most {most:g} here, got {given[name]:g}"
            raise InvalidRequestError("law_params", sentence, Reason.LAW_NOT_ALLOWED)
    return parse(law.name, given)


def _check_max_tokens(asked: int | None, limit: int | None) -> None:
    if asked is None:
        return
    if asked < 1:
        raise InvalidRequestError("max_tokens", f"max_tokens must be at least 1, got {asked}")
    if limit is not None and asked > limit:
        raise InvalidRequestError("max_tokens", f"max_tokens may be at most {limit} here, got {asked}")


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
        check_tokens("prompt_ids", request.prompt_ids, prompting.vocab_size)
        return tuple(request.prompt_ids)
    texts = [message.content for message in request.messages] or [request.prompt]
    texts += [call.arguments for message in request.messages for call in message.tool_calls]
    characters, limit = sum(map(len, texts)), _CHARACTERS_PER_TOKEN * prompting.context_length
    if characters > limit:
        sentence = f"a prompt may have at most {limit} characters here, this one has {characters}"
        raise InvalidRequestError("prompt", sentence, Reason.CONTEXT_LENGTH_EXCEEDED)
    if request.messages:
        return _chat_ids(request, prompting)
    ids = prompting.encode(request.prompt)
    if not ids:
        raise InvalidRequestError("prompt", "the prompt has no tokens")
    return tuple(ids)


def _chat_ids(request: pb.GenerateRequest, prompting: Prompting) -> tuple[int, ...]:
    turns: list[Turn] = []
    for index, message in enumerate(request.messages):
        turns.append(_turn(index, message, turns))
    if not turns[-1].content and turns[-1].role != "tool":
        raise InvalidRequestError("messages", "the prompt is empty; the last message needs content")
    offer = offer_of(request)
    try:
        return tuple(prompting.encode_chat(turns, offer.told if offer is not None else ()))
    except ConversationError as error:
        raise InvalidRequestError("messages", str(error)) from None


def _turn(index: int, message: pb.ChatMessage, before: Sequence[Turn]) -> Turn:
    here = f"messages[{index}]"
    if message.role not in ROLES:
        sentence = f"{here} has the role {short(message.role)}; roles are {', '.join(ROLES)}"
        raise InvalidRequestError("messages", sentence)
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError("messages", f"{here} has tool_calls, which are for the role assistant")
    if message.tool_call_id and message.role != "tool":
        raise InvalidRequestError("messages", f"{here} has a tool_call_id, which is for the role tool")
    known = {call.id for turn in before for call in turn.calls}
    if message.tool_call_id and message.tool_call_id not in known:
        sentence = f"{here} answers the call {short(message.tool_call_id)}, which no message before it has"
        raise InvalidRequestError("messages", sentence)
    calls = tuple(_call(here, call) for call in message.tool_calls)
    return Turn(message.role, message.content, calls, message.tool_call_id)


def _call(here: str, call: pb.ToolCall) -> Call:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError("messages", f"{here} has a call whose arguments are no JSON object")
    if not call.name:
        raise InvalidRequestError("messages", f"{here} has a call without a name")
    return Call(call.id, call.name, arguments)


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
