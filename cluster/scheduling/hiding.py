"""Whether a block is worth drafting before the outcome of the one before it is known."""

from __future__ import annotations

from cluster.scheduling.history import History

# A wait shorter than this share of a step is not worth a wasted draft, nor is a guess this seldom right.
_WAIT, _CHANCE = 0.1, 0.1


def ahead(history: History, length: int, most: int, chance: float = 1.0) -> int:
    """Tokens to grant after a block of `length`: as many again or none; chance: that the guess of the block's
    outcome is right. Where the drafter foresees all outcomes nothing is guessed, and they may be `most`."""
    if not length or history.waits:
        return 0
    if history.foresees:
        # The outcome has a token at least; the round after it emits one beyond its own drafts.
        return max(0, min(most, history.remaining - 2))
    if history.verify is None or chance < _CHANCE:
        return 0
    if history.draft.base < _WAIT * history.verify.of(1):
        return 0
    # The guess takes length + 1 tokens; the round after it emits one token beyond its own drafts.
    return max(0, min(length, history.remaining - length - 2))
