"""Plain decoding: one token from the target, no drafts."""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from verifier_service.verification.walk import Walk


def walk(target_probs: Tensor, block: DraftBlock, base: int) -> Walk:
    """Emits argmax(log p + G) at the one position. Raises ValueError for a block with drafts."""
    if block.tokens:
        raise ValueError(f"law none takes no drafts, got {len(block.tokens)}")
    token = yield base, target_probs[0]
    return Verdict(tokens=(token,), accepted=0)
