"""What a client asks, in its own terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from cluster.client.errors import RequestFailedError
from truedraft.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in the client's terms: fields of GenerateRequest and its Sampling, under their names there.
    None leaves a field to the deployment.

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
        request = pb.GenerateRequest(sampling=pb.Sampling())
        for each in fields(self):
            value = getattr(self, each.name)
            try:
                if each.name in pb.Sampling.DESCRIPTOR.fields_by_name:
                    request.sampling.MergeFrom(pb.Sampling(**{each.name: value}))
                elif each.name == "messages":
                    request.messages.extend(map(_message, value))
                else:
                    request.MergeFrom(pb.GenerateRequest(**{each.name: value}))
            except (ValueError, TypeError) as error:
                # Protobuf does not always name the field.
                sentence = f"The request cannot be sent: {each.name}: {error}."
                raise RequestFailedError("INVALID_ARGUMENT", sentence) from None
        return request


def _message(given: tuple[str, str] | pb.ChatMessage) -> pb.ChatMessage:
    return given if isinstance(given, pb.ChatMessage) else pb.ChatMessage(role=given[0], content=given[1])
