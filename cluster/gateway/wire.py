"""Provenance and events between their Python and their wire form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict

from cluster.gateway.errors import RequestError
from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import Claim, Law
from cluster.speculation.messages import DrafterIdentity
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import Committed, Finished, FinishReason
from truedraft.v1 import inference_pb2 as pb

TokenBytes = Callable[[int], bytes]

# Trailing metadata over gRPC, headers over HTTP. RETRY_KEY: seconds, as HTTP has it.
PROVENANCE_KEY = "truedraft-provenance"
REASON_KEY = "truedraft-reason"
FIELD_KEY = "truedraft-field"
RETRY_KEY = "retry-after"
# gRPC's default limit on a call's metadata is 8 KiB, the client's own and the proxy's included.
_MAX_TRAILER = 4096
_CLAIMS = {claim.label: claim for claim in Claim}
_FINISH = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
}


@dataclass(frozen=True, slots=True)
class Labels:
    """What the messages of one answer say of it: the request's id, the model's name, which of n, its seed."""

    id: str
    model: str
    index: int = 0
    seed: int = 0


def to_delta(event: Committed, law: Law, labels: Labels, token_bytes: TokenBytes) -> pb.Delta:
    """token_bytes: a token's UTF-8."""
    return pb.Delta(
        text=event.text,
        token_ids=event.token_ids,
        law=law.name,
        id=labels.id,
        index=labels.index,
        seed=labels.seed,
        logprobs=[
            pb.TokenLogprob(
                token_id=each.token,
                logprob=each.logprob,
                text=token_bytes(each.token),
                top=[
                    pb.TokenLogprob(token_id=token, logprob=value, text=token_bytes(token))
                    for token, value in each.top
                ],
            )
            for each in event.logprobs
        ],
    )


def to_answer(event: Finished, labels: Labels) -> pb.Answer:
    return pb.Answer(
        id=labels.id,
        model=labels.model,
        index=labels.index,
        finish_reason=_FINISH[event.reason],
        usage=pb.Usage(
            input_tokens=event.input_tokens,
            output_tokens=event.output_tokens,
            cached_input_tokens=event.cached_tokens,
        ),
        provenance=to_proto(event.provenance),
    )


def to_proto(provenance: Provenance) -> pb.Provenance:
    numerics = provenance.numerics
    return pb.Provenance(
        requested_law=provenance.requested_law.name,
        effective_law=provenance.effective_law.name,
        lossless=provenance.claim.lossless,
        claim=provenance.claim.label,
        reasons=provenance.reasons,
        numerics=pb.Numerics(
            weights_hash=numerics.weights_hash,
            dtype=numerics.dtype,
            kernels=numerics.kernels,
            threads=numerics.threads,
            row_invariant=numerics.row_invariant,
            logit_discrepancy=numerics.logit_discrepancy,
        ),
        drafters=[
            pb.Drafter(model=drafter.model, kind=drafter.kind, replica=drafter.replica)
            for drafter in provenance.drafters
        ],
        rounds=provenance.rounds,
        draft_tokens=provenance.draft_tokens,
        accepted_tokens=provenance.accepted_tokens,
        correction_tokens=provenance.correction_tokens,
        bonus_tokens=provenance.bonus_tokens,
        fallback_rounds=provenance.fallback_rounds,
        fallbacks=provenance.fallbacks,
        meanwhile_rounds=provenance.meanwhile_rounds,
        acceptance_length=provenance.acceptance_length,
        seed=provenance.seed,
        trace_id=provenance.trace_id,
        verifier_replica=provenance.verifier_replica,
        law_params=dict(provenance.effective_law.params),
        uncertain_positions=provenance.uncertain_positions,
        verifiers_lost=provenance.verifiers_lost,
        distortion=_distortion(provenance.distortion) if provenance.distortion is not None else None,
    )


def _distortion(ledger: DistortionTotals) -> pb.Distortion:
    return pb.Distortion(
        tokens=ledger.tokens,
        tv_mean=ledger.tv_mean,
        tv_max=ledger.tv_max,
        tv_total=ledger.tv_total,
        overshoot_max=ledger.overshoot_max,
        kl_total=ledger.kl_total,
    )


def from_proto(message: pb.Provenance) -> Provenance:
    """The inverse of `to_proto`, but that a requested law has the parameters of the effective one only if
    it is the same. Raises KeyError for an unknown claim."""
    numerics = message.numerics
    effective = Law(message.effective_law, tuple(sorted(message.law_params.items())))
    return Provenance(
        requested_law=effective if message.requested_law == effective.name else Law(message.requested_law),
        effective_law=effective,
        claim=_CLAIMS[message.claim],
        numerics=Numerics(
            weights_hash=numerics.weights_hash,
            dtype=numerics.dtype,
            kernels=numerics.kernels,
            threads=numerics.threads,
            row_invariant=numerics.row_invariant,
            logit_discrepancy=numerics.logit_discrepancy,
        ),
        seed=message.seed,
        reasons=tuple(message.reasons),
        drafters=tuple(
            DrafterIdentity(drafter.model, drafter.kind, drafter.replica) for drafter in message.drafters
        ),
        rounds=message.rounds,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
        correction_tokens=message.correction_tokens,
        bonus_tokens=message.bonus_tokens,
        fallbacks=dict(message.fallbacks),
        meanwhile_rounds=message.meanwhile_rounds,
        trace_id=message.trace_id,
        verifier_replica=message.verifier_replica,
        distortion=_ledger(message.distortion) if message.HasField("distortion") else None,
        uncertain_positions=message.uncertain_positions if message.HasField("uncertain_positions") else None,
        verifiers_lost=message.verifiers_lost,
    )


def _ledger(message: pb.Distortion) -> DistortionTotals:
    return DistortionTotals(
        tokens=message.tokens,
        tv_total=message.tv_total,
        tv_max=message.tv_max,
        overshoot_max=message.overshoot_max,
        kl_total=message.kl_total,
    )


def to_dict(provenance: pb.Provenance) -> dict[str, Any]:
    """Protobuf's JSON form with the field names of the .proto file; seed is a string, since a 64-bit
    integer does not survive most JSON readers."""
    return MessageToDict(
        provenance, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def to_trailer(provenance: pb.Provenance) -> str:
    """ASCII JSON for the trailing metadata; where it would be too long, lists are left to the Answer."""
    content = to_dict(provenance)
    text = json.dumps(content, separators=(",", ":"))
    if len(text) > _MAX_TRAILER:
        content["reasons"], content["drafters"] = [], []
        text = json.dumps(content | {"abridged": True}, separators=(",", ":"))
    return text


def error_trailer(error: RequestError) -> list[tuple[str, str]]:
    """What a gRPC status has no place for, as trailing metadata."""
    trailer = [(REASON_KEY, error.reason.value)]
    if error.field:
        trailer.append((FIELD_KEY, error.field))
    if error.cause.retry_after is not None:
        trailer.append((RETRY_KEY, str(error.cause.retry_after)))
    return trailer
