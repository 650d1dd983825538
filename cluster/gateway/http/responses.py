"""What the HTTP front answers with: OpenAI's objects around the service's messages."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.calls import add_pieces
from cluster.gateway import wire
from cluster.gateway.http import logprobs
from truedraft.v1 import inference_pb2 as pb

Json = dict[str, Any]

_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprob] = field(default_factory=list)
    calls: list[pb.ToolCall] = field(default_factory=list)
    answer: pb.Answer = field(default_factory=pb.Answer)

    def take(self, message: pb.Delta | pb.Answer) -> None:
        """Adds one of the service's messages."""
        if isinstance(message, pb.Answer):
            self.answer = message
        else:
            self.text += message.text
            self.token_ids.extend(message.token_ids)
            self.logprobs.extend(message.logprobs)
            add_pieces(self.calls, message.tool_calls)


class Completions:
    """The objects of /v1/completions; one instance a request. model: what clients call it; n: answers to each
    prompt."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str, n: int = 1) -> None:
        self.n = n
        self._created = int(time.time())
        self._model = model
        self._logprobs: defaultdict[int, logprobs.Completion] = defaultdict(logprobs.Completion)

    def opening(self, index: int) -> Json | None:
        """The choice of a chunk before its first text, none if there is no such chunk."""
        return None

    def delta(self, message: pb.Delta) -> Json:
        """The choice of a chunk."""
        told = self._logprobs[message.index].take(message.logprobs)
        return {"index": message.index, "text": message.text, "logprobs": told, "finish_reason": None}

    def end(self, answer: pb.Answer) -> Json:
        """The choice of the last chunk."""
        reason = _FINISH[answer.finish_reason]
        return {"index": answer.index, "text": "", "logprobs": None, "finish_reason": reason}

    def choice(self, choice: Choice) -> Json:
        """A whole answer's choice."""
        return {
            "index": choice.answer.index,
            "text": choice.text,
            "logprobs": logprobs.Completion().take(choice.logprobs),
            "finish_reason": _FINISH[choice.answer.finish_reason],
        }

    def chunk(self, request_id: str, choices: list[Json], **further: Any) -> Json:
        """An object of a stream."""
        return self._object(self.chunk_object, request_id, choices) | further

    def whole(self, choices: Sequence[Choice]) -> Json:
        """The object of answers that are not streamed; provenance is the first's, each choice has its own."""
        described = [
            self.choice(choice) | {"truedraft": provenance(choice.answer) | {"token_ids": choice.token_ids}}
            for choice in choices
        ]
        return self._object(self.whole_object, choices[0].answer.id, described) | {
            "usage": self.usage([choice.answer for choice in choices]),
            "truedraft": described[0]["truedraft"],
        }

    def usage(self, answers: Sequence[pb.Answer]) -> Json:
        """OpenAI's names for it; a prompt with several answers is counted once."""
        prompts = [answer.usage for answer in answers if answer.index % self.n == 0]
        prompt = sum(each.input_tokens for each in prompts)
        completion = sum(answer.usage.output_tokens for answer in answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_input_tokens for each in prompts)},
        }

    def _object(self, name: str, request_id: str, choices: list[Json]) -> Json:
        return {
            "id": f"{self.prefix}{request_id}",
            "object": name,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


class Chat(Completions):
    """The objects of /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> Json | None:
        return self._choice(index, {"role": "assistant", "content": ""})

    def delta(self, message: pb.Delta) -> Json:
        told = logprobs.chat(message.logprobs)
        content: Json = {"content": message.text} if message.text else {}
        if message.tool_calls:
            content["tool_calls"] = [_piece(call) for call in message.tool_calls]
        return self._choice(message.index, content) | {"logprobs": told}

    def end(self, answer: pb.Answer) -> Json:
        return self._choice(answer.index, {}) | {"finish_reason": _FINISH[answer.finish_reason]}

    def choice(self, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": list(map(_whole, choice.calls))}
        return {
            "index": choice.answer.index,
            "message": message,
            "logprobs": logprobs.chat(choice.logprobs),
            "finish_reason": _FINISH[choice.answer.finish_reason],
        }

    def _choice(self, index: int, delta: Json) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _whole(call: pb.ToolCall) -> Json:
    own = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": own}


def _piece(call: pb.ToolCall) -> Json:
    """The first of a call names it, the others have no more than arguments."""
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index} | _whole(call)


def provenance(answer: pb.Answer) -> Json:
    """With the law under the name that chunks have it by."""
    return {"law": answer.provenance.effective_law} | wire.to_dict(answer.provenance)


def event(content: Json | str) -> bytes:
    """One server-sent event."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
