"""What a client asks, in its own terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.client.errors import RequestFailedError
from truedraft.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the client's terms. None leaves a field to the deployment.

    messages: of a conversation, a pair of role and content or, for one with calls, the whole message; prompt:
    raw text instead of them; prompt_ids: tokens instead of either; law_params: the law's parameters by name.
    """

    messages: Sequence[tuple[str, str] | pb.ChatMessage] = ()
    prompt: str = ""
    prompt_ids: Sequence[int] = ()
    model: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    eta_cutoff: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    min_tokens: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    resumed_output_ids: Sequence[int] = ()
    seed: int | None = None
    law: str = ""
    law_params: Mapping[str, float] = field(default_factory=dict)
    domain: str = ""
    response_format: pb.ResponseFormat | None = None
    tools: Sequence[pb.Tool] = ()
    tool_choice: pb.ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def to_proto(self) -> pb.GenerateRequest:
        """Raises RequestFailedError for a value that its field on the wire cannot hold."""
        try:
            return pb.GenerateRequest(
                model=self.model,
                prompt=self.prompt,
                prompt_ids=self.prompt_ids,
                messages=map(_message, self.messages),
                sampling=pb.Sampling(
                    temperature=self.temperature,
                    top_k=self.top_k,
                    top_p=self.top_p,
                    min_p=self.min_p,
                    typical_p=self.typical_p,
                    eta_cutoff=self.eta_cutoff,
                    repetition_penalty=self.repetition_penalty,
                    frequency_penalty=self.frequency_penalty,
                    presence_penalty=self.presence_penalty,
                    logit_bias=self.logit_bias,
                ),
                bad_words=self.bad_words,
                min_tokens=self.min_tokens,
                max_tokens=self.max_tokens,
                stop=self.stop,
                stop_token_ids=self.stop_token_ids,
                ignore_eos=self.ignore_eos,
                top_logprobs=self.top_logprobs,
                resumed_output_ids=self.resumed_output_ids,
                seed=self.seed,
                law=self.law,
                law_params=self.law_params,
                domain=self.domain,
                response_format=self.response_format,
                tools=self.tools,
                tool_choice=self.tool_choice,
                parallel_tool_calls=self.parallel_tool_calls,
            )
        except (ValueError, TypeError) as error:
            sentence = f"The request cannot be sent: {self._culprit()}{error}."
            raise RequestFailedError("INVALID_ARGUMENT", sentence) from None

    def _culprit(self) -> str:
        """The field that its place on the wire cannot hold: protobuf does not name it."""
        for name in ("seed", "max_tokens", "min_tokens", "top_logprobs"):
            if not _holds(pb.GenerateRequest(), name, getattr(self, name)):
                return f"{name}: "
        return "top_k: " if not _holds(pb.Sampling(), "top_k", self.top_k) else ""


def _message(given: tuple[str, str] | pb.ChatMessage) -> pb.ChatMessage:
    return given if isinstance(given, pb.ChatMessage) else pb.ChatMessage(role=given[0], content=given[1])


def _holds(message: pb.GenerateRequest | pb.Sampling, name: str, value: int | None) -> bool:
    try:
        if value is not None:
            setattr(message, name, value)
    except (ValueError, TypeError):
        return False
    return True
