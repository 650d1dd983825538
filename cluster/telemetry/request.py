"""What the root span of a request says: its parameters when it begins, its provenance when it ends.

Attributes are scalars, because trace search is by `key=value`; several of a kind are joined by commas.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import Law
from cluster.speculation.provenance import Provenance
from cluster.speculation.request import Finished, GenerationRequest
from cluster.telemetry import names

Scalar = str | bool | int | float
Attributes = dict[str, Scalar | tuple[str, ...]]

_INT64_MAX = 2**63 - 1


def root_attributes(request: GenerationRequest, model: str, operation: str) -> dict[str, Scalar]:
    """For the beginning of the root span. operation: names.OPERATION_CHAT or OPERATION_TEXT."""
    sampling = request.sampling
    attributes: dict[str, Scalar] = {
        names.GEN_AI_OPERATION_NAME: operation,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: model,
        names.GEN_AI_REQUEST_MAX_TOKENS: request.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: float(sampling.temperature),
        names.GEN_AI_REQUEST_TOP_P: float(sampling.top_p),
        names.GEN_AI_REQUEST_TOP_K: sampling.top_k,
        names.REQUEST_MIN_P: float(sampling.min_p),
        names.REQUEST_TYPICAL_P: float(sampling.typical_p),
        names.REQUEST_ETA_CUTOFF: float(sampling.eta_cutoff),
        names.VERIFICATION_REQUESTED: request.requested_law.name,
        names.VERIFICATION_MODE: request.law.name,
        names.SEED: str(request.seed),
    }
    # The convention's seed is a signed integer; ours has all 64 bits, and is a string besides, since
    # trace viewers in browsers round large numbers.
    if request.seed <= _INT64_MAX:
        attributes[names.GEN_AI_REQUEST_SEED] = request.seed
    if request.domain:
        attributes[names.DOMAIN] = request.domain
    controls = request.controls
    optional: dict[str, tuple[Scalar, Scalar]] = {
        names.GEN_AI_REQUEST_FREQUENCY_PENALTY: (float(controls.frequency_penalty), 0.0),
        names.GEN_AI_REQUEST_PRESENCE_PENALTY: (float(controls.presence_penalty), 0.0),
        names.REQUEST_REPETITION_PENALTY: (float(controls.repetition_penalty), 1.0),
        names.REQUEST_MIN_TOKENS: (controls.min_tokens, 0),
        names.REQUEST_RESUMED_TOKENS: (len(request.resumed_ids), 0),
    }
    attributes |= {name: value for name, (value, neutral) in optional.items() if value != neutral}
    return attributes | _params(request.law)


def provenance_attributes(provenance: Provenance) -> dict[str, Scalar]:
    """Everything that an answer's Provenance says, but the trace id."""
    numerics = provenance.numerics
    attributes: dict[str, Scalar] = {
        names.VERIFICATION_REQUESTED: provenance.requested_law.name,
        names.VERIFICATION_MODE: provenance.effective_law.name,
        names.LOSSLESS: provenance.claim.lossless,
        names.CLAIM: provenance.claim.label,
        names.SEED: str(provenance.seed),
        names.ROUNDS: provenance.rounds,
        names.DRAFT_TOKENS: provenance.draft_tokens,
        names.ACCEPTED_TOKENS: provenance.accepted_tokens,
        names.CORRECTION_TOKENS: provenance.correction_tokens,
        names.BONUS_TOKENS: provenance.bonus_tokens,
        names.EMITTED_TOKENS: provenance.emitted_tokens,
        names.ACCEPTANCE_LENGTH: float(provenance.acceptance_length),
        names.FALLBACK_ROUNDS: provenance.fallback_rounds,
        names.MEANWHILE_ROUNDS: provenance.meanwhile_rounds,
        names.WEIGHTS_HASH: numerics.weights_hash,
        names.DTYPE: numerics.dtype,
        names.KERNELS: numerics.kernels,
        names.THREADS: numerics.threads,
        names.ROW_INVARIANT: numerics.row_invariant,
    }
    if provenance.verifier_replica:
        attributes[names.VERIFIER_REPLICA] = provenance.verifier_replica
    if provenance.verifiers_lost:
        attributes[names.VERIFIERS_LOST] = provenance.verifiers_lost
    if provenance.reasons:
        attributes[names.REASONS] = " ".join(provenance.reasons)
    if provenance.fallbacks:
        attributes[names.FALLBACK_REASON] = _joined(sorted(provenance.fallbacks))
    for reason, rounds in provenance.fallbacks.items():
        attributes[names.FALLBACK_COUNT_PREFIX + reason] = rounds
    if provenance.drafters:
        attributes[names.DRAFTER_MODEL] = _joined(drafter.model for drafter in provenance.drafters)
        attributes[names.DRAFTER_KIND] = _joined(drafter.kind for drafter in provenance.drafters)
        attributes[names.DRAFTER_REPLICA] = _joined(drafter.replica for drafter in provenance.drafters)
    if not numerics.row_invariant:
        attributes[names.LOGIT_DISCREPANCY] = float(numerics.logit_discrepancy)
    if provenance.uncertain_positions is not None:
        attributes[names.UNCERTAIN_POSITIONS] = provenance.uncertain_positions
    if provenance.distortion is not None:
        attributes |= _distortion(provenance.distortion)
    return attributes | _params(provenance.effective_law)


def _distortion(ledger: DistortionTotals) -> dict[str, Scalar]:
    return {
        names.DISTORTION_TV_MEAN: float(ledger.tv_mean),
        names.DISTORTION_TV_MAX: float(ledger.tv_max),
        names.DISTORTION_TV_TOTAL: float(ledger.tv_total),
        names.DISTORTION_KL_TOTAL: float(ledger.kl_total),
        names.OVERSHOOT_MAX: float(ledger.overshoot_max),
    }


def _params(law: Law) -> dict[str, Scalar]:
    if not law.params:
        return {}
    return {names.VERIFICATION_PARAMS: _joined(f"{name}={value:g}" for name, value in law.params)}


def answer_attributes(finished: Finished, request_id: str, model: str) -> Attributes:
    """For the end of the root span: provenance, finish reason and usage."""
    return {
        **provenance_attributes(finished.provenance),
        names.GEN_AI_RESPONSE_ID: request_id,
        names.GEN_AI_RESPONSE_MODEL: model,
        # The one array: the convention types it so.
        names.GEN_AI_RESPONSE_FINISH_REASONS: (finished.reason.value,),
        names.GEN_AI_USAGE_INPUT_TOKENS: finished.input_tokens,
        names.GEN_AI_USAGE_CACHED_TOKENS: finished.cached_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: finished.output_tokens,
    }


def _joined(values: Iterable[str]) -> str:
    """Each value once, in order of appearance."""
    return ",".join(dict.fromkeys(values))
