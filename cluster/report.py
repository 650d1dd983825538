"""An answer's provenance in a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.client import Answer
from truedraft.v1 import inference_pb2 as pb


def provenance_lines(answer: Answer) -> Iterator[str]:
    """What it was sampled under, what was drafted, and why it is otherwise than asked; nothing without an end."""
    if answer.final is None:
        return
    usage, p = answer.final.usage, answer.final.provenance
    lossless = "lossless" if p.lossless else "NOT lossless"
    yield f"law {p.effective_law} · {lossless} · claim {p.claim} · seed {p.seed}"
    yield (
        f"drafted {p.draft_tokens}, accepted {p.accepted_tokens} · {usage.output_tokens} tokens in {p.rounds} rounds · "
        f"acceptance length {p.acceptance_length:.2f} · drafted by {drafters(p)}"
    )
    for reason in p.reasons:
        yield f"note: {reason}"
    yield f"trace {p.trace_id or 'none'} · request {answer.final.id}"


def drafters(provenance: pb.Provenance) -> str:
    """Kinds and models of the drafters used."""
    return ", ".join(sorted({f"{d.kind} ({d.model})" for d in provenance.drafters})) or "nobody"
