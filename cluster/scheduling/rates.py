"""Tokens a second by block length."""

from __future__ import annotations

from cluster.scheduling.acceptance import Outlook
from cluster.scheduling.history import History


def rates(history: History, expected: Outlook, hides: bool) -> list[float]:
    """The request's own, which waits for its block, and those of others in the same steps, which its rows
    delay. hides: whether what was guessed right is not waited for. Needs measured costs."""
    assert history.verify is not None
    found = []
    for k, tokens in enumerate(expected.tokens):
        rows = history.other_rows + 1.0 + expected.rows[k]
        step = history.verify.of(rows, rows * history.committed)
        # A block that is there before it is asked for is not waited for.
        waits = 1.0 - expected.guessed[k] if hides else 1.0
        found.append(tokens / (waits * history.draft.of(k) + step) + history.other_tokens / step)
    return found
