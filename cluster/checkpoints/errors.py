"""What goes wrong with checkpoints."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be had or used; the message is one sentence for the person who asked for it."""
