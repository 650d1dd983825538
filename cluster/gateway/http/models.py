"""What the HTTP front takes: OpenAI's request bodies, and the sampling parameters that servers add to them.

Values are checked by the service, under the names of inference.proto; here only names and types are. A
field of OpenAI's that is not served may be sent with the value that means "not used", and with no other.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cluster.gateway.errors import Reason
from cluster.gateway.http.conversation import Body, Message, Tool, ToolChoice, to_choice
from cluster.gateway.invalid import InvalidRequestError, short
from cluster.gateway.parameters import MAX_TOP_LOGPROBS
from truedraft.v1 import inference_pb2 as pb

_Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Token = Annotated[int, Field(ge=0, lt=2**32)]

_ID_DIGITS = 10
# Answers to one request, over all of its prompts.
_MAX_ANSWERS = 64

# What the fields of inference.proto are called here, where they are called differently.
_NAMES = {
    "prompt_ids": "prompt",
    "law": "truedraft.law",
    "law_params": "truedraft.law_params",
    "domain": "truedraft.domain",
    "resumed_output_ids": "truedraft.resumed_output_ids",
}


# Fields of Sampling that are taken as they come.
_SAMPLING = tuple(name for name in pb.Sampling.DESCRIPTOR.fields_by_name if name != "logit_bias")


def parameter_name(field: str) -> str:
    """field: of GenerateRequest, dotted."""
    return _NAMES.get(field, field.removeprefix("sampling."))


class JsonSchema(Body):
    """strict is how every schema is served."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's three, and a regular expression."""

    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchema | None = None
    regex: str | None = None

    def to_proto(self) -> pb.ResponseFormat:
        """Raises InvalidRequestError."""
        given = {"json_schema": self.json_schema, "regex": self.regex}
        for name, value in given.items():
            if (value is None) == (self.type == name):
                sentence = f"response_format of type {self.type} and {name} do not go together"
                raise InvalidRequestError("response_format", sentence)
        if self.json_schema is not None:
            return pb.ResponseFormat(json_schema=json.dumps(self.json_schema.schema_))
        if self.regex is not None:
            return pb.ResponseFormat(regex=self.regex)
        return pb.ResponseFormat(json_object=True) if self.type == "json_object" else pb.ResponseFormat()


class StreamOptions(Body):
    include_usage: bool = False


class TruedraftFields(Body):
    """max_distortion: short for the law's parameter of this name."""

    law: str | None = None
    law_params: dict[str, float] = Field(default_factory=dict)
    max_distortion: float | None = None
    domain: str | None = None
    resumed_output_ids: list[_Token] = Field(default_factory=list)

    def put(self, request: pb.GenerateRequest) -> None:
        """Adds these fields to a request."""
        request.law, request.domain = self.law or "", self.domain or ""
        request.resumed_output_ids.extend(self.resumed_output_ids)
        request.law_params.update(self.law_params)
        if self.max_distortion is not None:
            if self.law_params.get("max_distortion", self.max_distortion) != self.max_distortion:
                raise InvalidRequestError(
                    "truedraft.max_distortion", "max_distortion is given twice, with different values"
                )
            request.law_params["max_distortion"] = self.max_distortion


class _Generation(Body):
    model: str | None = None
    temperature: float | None = None
    top_k: _Int32 | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    min_tokens: _Int32 | None = None
    stop_token_ids: list[_Token] | None = None
    ignore_eos: bool | None = None
    n: _Int32 | None = None
    response_format: ResponseFormat | None = None
    max_tokens: _Int32 | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truedraft: TruedraftFields | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of its own for the usage. Raises InvalidRequestError."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequestError("stream_options", "stream_options is for streams: set stream to true")
        return self.stream_options.include_usage

    def _biases(self) -> dict[int, float]:
        """JSON has strings for keys. Raises InvalidRequestError."""
        biases: dict[int, float] = {}
        for key, bias in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS and int(key) < 2**32):
                sentence = f"logit_bias is by token ids, {short(key)} is none"
                raise InvalidRequestError("sampling.logit_bias", sentence)
            if int(key) in biases:
                raise InvalidRequestError("sampling.logit_bias", f"logit_bias has token {int(key)} twice")
            biases[int(key)] = bias
        return biases

    def _to_proto(self, limit: int | None, alternatives: int | None, **prompt: Any) -> pb.GenerateRequest:
        """limit: max_tokens; alternatives: top_logprobs; prompt: one of prompt, prompt_ids and messages, and
        what goes with it. Raises InvalidRequestError."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        try:
            request = pb.GenerateRequest(
                model=self.model,
                sampling=pb.Sampling(
                    logit_bias=self._biases(), **{name: getattr(self, name) for name in _SAMPLING}
                ),
                max_tokens=limit,
                min_tokens=self.min_tokens,
                stop=stop,
                stop_token_ids=self.stop_token_ids,
                ignore_eos=self.ignore_eos,
                bad_words=self.bad_words,
                top_logprobs=alternatives,
                n=self.n,
                response_format=self.response_format.to_proto() if self.response_format else None,
                seed=self.seed,
                **prompt,
            )
            if self.truedraft is not None:
                self.truedraft.put(request)
        except UnicodeEncodeError:
            # JSON can spell half a surrogate pair.
            sentence = "the request holds text that is no Unicode: a surrogate without its other half"
            raise InvalidRequestError("", sentence, Reason.MALFORMED_REQUEST) from None
        return request


class CompletionRequest(_Generation):
    """POST /v1/completions."""

    prompt: str | list[_Token] | list[str] | list[list[_Token]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: _Int32 | None = None
    echo: Literal[False] | None = None
    suffix: None = None

    def to_protos(self) -> list[pb.GenerateRequest]:
        """One for each prompt. Raises InvalidRequestError."""
        if self.best_of not in (None, self.n or 1):
            sentence = "best_of is not served here; it may only be n or left out"
            raise InvalidRequestError("best_of", sentence, Reason.UNKNOWN_PARAMETER)
        prompts = self._prompts()
        answers = len(prompts) * (self.n or 1)
        if len(prompts) > 1 and answers > _MAX_ANSWERS:
            sentence = f"prompts and n give {answers} answers, at most {_MAX_ANSWERS} are taken"
            raise InvalidRequestError("prompt", sentence)
        if len(prompts) > 1 and self.truedraft is not None and self.truedraft.resumed_output_ids:
            sentence = "one answer is resumed at a time: send one prompt"
            raise InvalidRequestError("resumed_output_ids", sentence)
        return [self._to_proto(self.max_tokens, self.logprobs, **prompt) for prompt in prompts]

    def _prompts(self) -> list[dict[str, Any]]:
        """Each under the name of its field."""
        if isinstance(self.prompt, str):
            return [{"prompt": self.prompt}]
        if not self.prompt or isinstance(self.prompt[0], int):
            return [{"prompt_ids": self.prompt}]
        return [{"prompt" if isinstance(each, str) else "prompt_ids": each} for each in self.prompt]


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: list[Message]
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: _Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: _Int32 | None = None
    store: Literal[False] | None = None

    def to_protos(self) -> list[pb.GenerateRequest]:
        """The one. Raises InvalidRequestError."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.max_tokens not in (None, limit):
            raise InvalidRequestError(
                "max_tokens", "max_tokens and max_completion_tokens are given, with different values"
            )
        try:
            messages = [message.to_proto() for message in self.messages]
            tools = [tool.to_proto() for tool in self.tools or ()]
            choice = to_choice(self.tool_choice)
        except UnicodeEncodeError:
            sentence = "a message holds text that is no Unicode: a surrogate without its other half"
            raise InvalidRequestError("messages", sentence, Reason.MALFORMED_REQUEST) from None
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs", "top_logprobs needs logprobs to be true")
        alternatives = (self.top_logprobs or 0) if self.logprobs else None
        request = self._to_proto(
            limit,
            alternatives,
            messages=messages,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )
        return [request]


class ErrorContent(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """How every error is answered."""

    error: ErrorContent
