"""What the HTTP front answers with: OpenAI's objects around the service's messages."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from cluster.gateway import wire
from truedraft.v1 import inference_pb2 as pb

Json = dict[str, Any]

_FINISH = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


@dataclass(slots=True)
class Choice:
    """An answer as it grows."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    answer: pb.Answer = field(default_factory=pb.Answer)

    def take(self, message: pb.Delta | pb.Answer) -> None:
        """Adds one of the service's messages."""
        if isinstance(message, pb.Answer):
            self.answer = message
        else:
            self.text += message.text
            self.token_ids.extend(message.token_ids)


class Completions:
    """The objects of /v1/completions; one instance a request. model: what clients call it."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str) -> None:
        self._created = int(time.time())
        self._model = model

    def opening(self) -> list[Json]:
        """Choices of a chunk before the first text, none if there is no such chunk."""
        return []

    def delta(self, message: pb.Delta) -> Json:
        """The choice of a chunk."""
        return {"index": 0, "text": message.text, "logprobs": None, "finish_reason": None}

    def end(self, answer: pb.Answer) -> Json:
        """The choice of the last chunk."""
        reason = _FINISH[answer.finish_reason]
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": reason}

    def choice(self, choice: Choice) -> Json:
        """A whole answer's choice."""
        reason = _FINISH[choice.answer.finish_reason]
        return {"index": 0, "text": choice.text, "logprobs": None, "finish_reason": reason}

    def chunk(self, request_id: str, choices: list[Json], **further: Any) -> Json:
        """An object of a stream."""
        return self._object(self.chunk_object, request_id, choices) | further

    def whole(self, request_id: str, choice: Choice) -> Json:
        """The object of an answer that is not streamed."""
        return self._object(self.whole_object, request_id, [self.choice(choice)]) | {
            "usage": usage(choice.answer),
            "truedraft": provenance(choice.answer) | {"token_ids": choice.token_ids},
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

    def opening(self) -> list[Json]:
        return [self._choice({"role": "assistant", "content": ""})]

    def delta(self, message: pb.Delta) -> Json:
        return self._choice({"content": message.text})

    def end(self, answer: pb.Answer) -> Json:
        return self._choice({}, _FINISH[answer.finish_reason])

    def choice(self, choice: Choice) -> Json:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        reason = _FINISH[choice.answer.finish_reason]
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}

    def _choice(self, delta: Json, finish_reason: str | None = None) -> Json:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def usage(answer: pb.Answer) -> Json:
    """OpenAI's names for it."""
    prompt, completion = answer.usage.input_tokens, answer.usage.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def provenance(answer: pb.Answer) -> Json:
    """With the law under the name that chunks have it by."""
    return {"law": answer.provenance.effective_law} | wire.to_dict(answer.provenance)


def event(content: Json | str) -> bytes:
    """One server-sent event."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
