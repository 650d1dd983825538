"""Names of spans, events, attributes and metrics: the contract of docs/tracing.md and docs/metrics.md.

OpenTelemetry's GenAI conventions are in Development and the constants of the semantic-conventions package
move between releases, so the strings lie here and nowhere else.
"""

from __future__ import annotations

from typing import Final

# Spans. The root span's name is "{operation} {model}".
# A client's, around the root span.
SPAN_GENERATE: Final = "generate"
SPAN_QUEUE: Final = "queue"
SPAN_PREFILL: Final = "prefill"
SPAN_ROUND: Final = "speculation.round"
SPAN_DRAFT: Final = "draft"
SPAN_VERIFY: Final = "verify"
SPAN_STEP: Final = "verification.step"
SPAN_AUDIT: Final = "truedraft.audit"

# Events.
EVENT_FALLBACK: Final = "fallback"
EVENT_CANCELLED: Final = "cancelled"
EVENT_REFUSED: Final = "refused"
EVENT_FAILED: Final = "failed"
EVENT_PREEMPTED: Final = "preempted"
EVENT_VERIFIER_LOST: Final = "verifier lost"

# GenAI conventions.
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

# Their values.
OPERATION_CHAT: Final = "chat"
OPERATION_TEXT: Final = "text_completion"
PROVIDER: Final = "truedraft"
# Error types are the names of gRPC statuses, of which there are few; a draft's are reasons for a fallback.
ERROR_INTERNAL: Final = "INTERNAL"

# What was asked and what was served. The mode is the effective law.
VERIFICATION_MODE: Final = "truedraft.verification.mode"
VERIFICATION_REQUESTED: Final = "truedraft.verification.requested"
VERIFICATION_PARAMS: Final = "truedraft.verification.params"
LOSSLESS: Final = "truedraft.lossless"
CLAIM: Final = "truedraft.claim"
REASONS: Final = "truedraft.reasons"
REQUEST_MIN_P: Final = "truedraft.request.min_p"
REQUEST_TYPICAL_P: Final = "truedraft.request.typical_p"
REQUEST_ETA_CUTOFF: Final = "truedraft.request.eta_cutoff"
REQUEST_REPETITION_PENALTY: Final = "truedraft.request.repetition_penalty"
REQUEST_MIN_TOKENS: Final = "truedraft.request.min_tokens"
REQUEST_RESUMED_TOKENS: Final = "truedraft.request.resumed_tokens"
SEED: Final = "truedraft.seed"
DOMAIN: Final = "truedraft.domain"
TENANT: Final = "truedraft.tenant"

# Counts, on the root span over the request, on a round over the round.
ROUNDS: Final = "truedraft.rounds"
DRAFT_TOKENS: Final = "truedraft.draft.tokens"
DRAFT_AHEAD: Final = "truedraft.draft.ahead"
ACCEPTED_TOKENS: Final = "truedraft.accepted.tokens"
CORRECTION_TOKENS: Final = "truedraft.correction.tokens"
BONUS_TOKENS: Final = "truedraft.bonus.tokens"
EMITTED_TOKENS: Final = "truedraft.emitted.tokens"
ACCEPTANCE_LENGTH: Final = "truedraft.acceptance_length"
FALLBACK_ROUNDS: Final = "truedraft.fallback.rounds"
MEANWHILE_ROUNDS: Final = "truedraft.meanwhile.rounds"
FALLBACK_REASON: Final = "truedraft.fallback.reason"
FALLBACK_DETAIL: Final = "truedraft.fallback.detail"
# Followed by a reason: how many rounds fell back for it.
FALLBACK_COUNT_PREFIX: Final = "truedraft.fallback.count."
CANCEL_REASON: Final = "truedraft.cancel.reason"
ERROR_REASON: Final = "truedraft.error.reason"

# How far the tokens' laws were from the target's, under a lossy law.
DISTORTION_TV_MEAN: Final = "truedraft.distortion.tv_mean"
DISTORTION_TV_MAX: Final = "truedraft.distortion.tv_max"
DISTORTION_TV_TOTAL: Final = "truedraft.distortion.tv_total"
DISTORTION_KL_TOTAL: Final = "truedraft.distortion.kl_total"
OVERSHOOT_MAX: Final = "truedraft.overshoot.max"

# Who did it, and what bitwise equality is relative to.
DRAFTER_MODEL: Final = "truedraft.drafter.model"
DRAFTER_KIND: Final = "truedraft.drafter.kind"
DRAFTER_REPLICA: Final = "truedraft.drafter.replica"
VERIFIER_REPLICA: Final = "truedraft.verifier.replica"
VERIFIERS_LOST: Final = "truedraft.verifiers.lost"
# Of an event: the tokens of an answer that were sent by then.
SENT_TOKENS: Final = "truedraft.sent.tokens"
ROW_INVARIANT: Final = "truedraft.row_invariant"
WEIGHTS_HASH: Final = "truedraft.numerics.weights_hash"
DTYPE: Final = "truedraft.numerics.dtype"
KERNELS: Final = "truedraft.numerics.kernels"
LOGIT_DISCREPANCY: Final = "truedraft.numerics.logit_discrepancy"
UNCERTAIN_POSITIONS: Final = "truedraft.uncertain_positions"
THREADS: Final = "truedraft.numerics.threads"

# A round and its batch.
ROUND_INDEX: Final = "truedraft.round.index"
ROUND_BASE: Final = "truedraft.round.base"
PLAN_LENGTH: Final = "truedraft.plan.length"
PLAN_WIDTH: Final = "truedraft.plan.width"
PREFILL_TOKENS: Final = "truedraft.prefill.tokens"
PREFILL_CACHED_TOKENS: Final = "truedraft.prefill.cached_tokens"
BATCH_SEQUENCES: Final = "truedraft.batch.sequences"
BATCH_ROWS: Final = "truedraft.batch.rows"

# An audit. Kinds, then outcomes: a replay's, and that of a bet, which is told only once it is an alarm.
AUDIT_KIND: Final = "truedraft.audit.kind"
AUDIT_REPLAY: Final = "replay"
AUDIT_RANKS: Final = "ranks"
AUDIT_DRAWN: Final = "drawn"
AUDIT_KEPT: Final = "kept"
AUDIT_OUTCOME: Final = "truedraft.audit.outcome"
AUDIT_EQUAL: Final = "equal"
AUDIT_NEAR_TIE: Final = "near-tie"
AUDIT_FAULT: Final = "fault"
AUDIT_ALARM: Final = "alarm"
AUDIT_P_VALUE: Final = "truedraft.audit.p_value"
AUDIT_TOKENS: Final = "truedraft.audit.tokens"
AUDIT_POSITION: Final = "truedraft.audit.position"
AUDIT_MARGIN: Final = "truedraft.audit.margin"
