#!/usr/bin/env bash
# grpcurl against truedraft: what there is, and one answer with its provenance. The service is found by reflection.
set -euo pipefail
# TRUEDRAFT_API_KEY is sent where keys are asked for.
endpoint=${TRUEDRAFT_ENDPOINT:-127.0.0.1:9000}
key=${TRUEDRAFT_API_KEY:-}

grpcurl -plaintext "$endpoint" list
grpcurl -plaintext "$endpoint" describe truedraft.v1.InferenceService
grpcurl -plaintext ${key:+-H "authorization: Bearer $key"} -d '{"prompt": "Once upon a time", "max_tokens": 16, "seed": 7}' \
    "$endpoint" truedraft.v1.InferenceService/Complete
