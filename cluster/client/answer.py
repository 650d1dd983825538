"""An answer as a client collects it, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from cluster.calls import add_pieces
from cluster.client.ask import Ask
from truedraft.v1 import inference_pb2 as pb


@dataclass(slots=True)
class Answer:
    """An answer as it grows; `final` is None until it is whole."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tool_calls: list[pb.ToolCall] = field(default_factory=list)
    final: pb.Answer | None = None


def take(answer: Answer, response: pb.GenerateResponse) -> None:
    """Adds a message of a stream to the answer."""
    if response.HasField("delta"):
        answer.text += response.delta.text
        answer.token_ids.extend(response.delta.token_ids)
        add_pieces(answer.tool_calls, response.delta.tool_calls)
    elif response.HasField("answer"):
        answer.final = response.answer


def as_dict(answer: Answer, ask: Ask) -> dict[str, Any]:
    """A whole answer for machines, and what was asked, with the field names of inference.proto; 64-bit
    integers are strings."""
    assert answer.final is not None
    content = MessageToDict(
        answer.final, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    content["finish_reason"] = _finish(answer.final)
    if answer.tool_calls:
        content["tool_calls"] = [_as_dict(call) for call in answer.tool_calls]
    request = MessageToDict(ask.to_proto(), preserving_proto_field_name=True)
    return {"text": answer.text, "token_ids": answer.token_ids, **content, "request": request}


def _as_dict(call: pb.ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def provenance_block(final: pb.Answer) -> str:
    """The answer's provenance for people, a few lines."""
    provenance = final.provenance
    lossless = "lossless" if provenance.lossless else "not lossless"
    names = (
        each.kind if each.kind == each.model else f"{each.kind} {each.model}" for each in provenance.drafters
    )
    drafters = ", ".join(dict.fromkeys(names)) or "none"
    rounds = f"{provenance.rounds} rounds ({provenance.acceptance_length:.2f} a round)"
    drafts = f"drafted {provenance.draft_tokens}, accepted {provenance.accepted_tokens}"
    params = "".join(f" {name}={value:g}" for name, value in sorted(provenance.law_params.items()))
    lines = [
        f"law {provenance.effective_law}{params} · {lossless} · {provenance.claim}",
        f"{final.usage.output_tokens} tokens in {rounds} · {drafts} · drafter {drafters}",
        f"seed {provenance.seed} · trace {provenance.trace_id or 'none'} · finish {_finish(final)}",
    ]
    if provenance.HasField("distortion"):
        spent = provenance.distortion
        lines.append(
            f"total variation a token {spent.tv_mean:.4f}, at most {spent.tv_max:.4f} · "
            f"overshoot up to {spent.overshoot_max:.3g} times"
        )
    if provenance.fallbacks:
        counts = (f"{reason} {count}" for reason, count in sorted(provenance.fallbacks.items()))
        lines.append(f"rounds without their block: {', '.join(counts)}")
    return "\n".join([*lines, *provenance.reasons])


def _finish(final: pb.Answer) -> str:
    return pb.FinishReason.Name(final.finish_reason).removeprefix("FINISH_REASON_").lower()
