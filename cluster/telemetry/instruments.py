"""Names and labels of metrics: the contract of docs/metrics.md. Prometheus writes dots as underscores, and
adds the unit and `_total`."""

from __future__ import annotations

from typing import Final

# Labels, beside error.type and those of the GenAI conventions.
LAW: Final = "law"
DRAFTER: Final = "drafter"
POOL: Final = "pool"
DOMAIN: Final = "domain"
REASON: Final = "reason"
CLAIM: Final = "claim"
LOSSLESS: Final = "lossless"
OUTCOME: Final = "outcome"
DIRECTION: Final = "direction"
KIND: Final = "kind"
SOURCE: Final = "source"

# The gateway's.
REQUEST_DURATION: Final = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"
REQUESTS: Final = "truedraft.requests"
MEASURED: Final = "truedraft.acceptance.measured"
VERIFIERS_LOST: Final = "truedraft.verifiers.lost"

# The verifier's, of rounds: all by law, drafter and domain.
ROUNDS: Final = "truedraft.rounds"
DRAFTED: Final = "truedraft.tokens.drafted"
ACCEPTED: Final = "truedraft.tokens.accepted"
CORRECTIONS: Final = "truedraft.tokens.corrections"
BONUSES: Final = "truedraft.tokens.bonuses"
EMITTED: Final = "truedraft.tokens.emitted"
DISCARDED: Final = "truedraft.tokens.discarded"
WITHDRAWN: Final = "truedraft.tokens.withdrawn"
FALLBACKS: Final = "truedraft.fallbacks"
MEANWHILE: Final = "truedraft.rounds.meanwhile"
OVERTAKEN: Final = "truedraft.blocks.overtaken"

# The verifier's, of itself and of its stream to a drafter.
PLAN_LENGTH: Final = "truedraft.plan.length"
BREAK_EVEN: Final = "truedraft.break_even"
ROUND_TRIP: Final = "truedraft.draft.round_trip"
ASKING: Final = "truedraft.draft.price"
DRAFTER_CONNECTED: Final = "truedraft.drafter.connected"
DROPPED: Final = "truedraft.blocks.dropped"
AHEAD: Final = "truedraft.drafts.ahead"
WIRE_BYTES: Final = "truedraft.drafting.bytes"
SEQUENCES: Final = "truedraft.sequences"
KV_TOKENS: Final = "truedraft.kv.tokens"
KV_LIMIT: Final = "truedraft.kv.limit"
KV_KEPT: Final = "truedraft.kv.kept"
PREEMPTIONS: Final = "truedraft.preemptions"
PROMPT_TOKENS: Final = "truedraft.prompt.tokens"
# Where keys and values of prompts come from.
CACHED: Final = "cached"
COMPUTED: Final = "computed"
RECOMPUTED: Final = "recomputed"

# Audits, by law, drafter and domain.
AUDIT_P_VALUE: Final = "truedraft.audit.p_value"
AUDIT_BETS: Final = "truedraft.audit.bets"
AUDIT_REPLAYS: Final = "truedraft.audit.replays"
AUDIT_ALARM: Final = "truedraft.audit.alarm"

# Boundaries that the GenAI conventions advise, in seconds.
DURATION_BUCKETS: Final = tuple(0.01 * 2**k for k in range(14))
FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
