"""Plain decoding: one token from the target, no drafts."""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise


def verify(target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Emits argmax(log p + G) at the one position. Raises ValueError for a block with drafts."""
    if block.tokens:
        raise ValueError(f"law none takes no drafts, got {len(block.tokens)}")
    return Verdict(tokens=(noise.field.winner(noise.base, target_probs[0]),), accepted=0)
