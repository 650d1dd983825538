"""Models by reference: where they come from, how they are loaded, how two processes compare theirs."""

from cluster.checkpoints.errors import CheckpointError
from cluster.checkpoints.loading import (
    end_of_sequence_ids,
    load_model,
    load_tokenizer,
    tokenizer_hash,
    weights_hash,
)
from cluster.checkpoints.registry import DEFAULT_REFERENCE, Checkpoint, resolve

__all__ = [
    "DEFAULT_REFERENCE",
    "Checkpoint",
    "CheckpointError",
    "end_of_sequence_ids",
    "load_model",
    "load_tokenizer",
    "resolve",
    "tokenizer_hash",
    "weights_hash",
]
