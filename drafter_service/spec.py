"""What a drafter replica is configured with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.channel.spec import LOOPBACK, Channel


class DrafterKind(StrEnum):
    """How a replica drafts: by looking up the text itself, with a causal language model, or a block at once
    from the target's hidden states, with DFlash or DFlash 2, whichever the checkpoint is."""

    NGRAM = "ngram"
    CAUSAL_LM = "causal_lm"
    DFLASH = "dflash"


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """target: checkpoint reference of the target, whose tokenizer is the drafter's too; model: checkpoint
    reference of the draft model, empty for a kind without one; dtype, device: as torch names them,
    dtype also of the features that are sent;
    cache_dir: where packaged checkpoints lie, None for the default; ports: the first free one of
    first..last is listened on, None for any; host: to listen on, empty for the node's address; channel:
    certificates of the streams from verifiers; threads: CPU threads, 0 leaves torch's choice.

    Raises ValueError when kind and model do not go together.
    """

    target: str
    kind: str = DrafterKind.NGRAM
    model: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    cache_dir: str | None = None
    host: str = ""
    ports: tuple[int, int] | None = None
    channel: Channel = LOOPBACK
    threads: int = 0

    def __post_init__(self) -> None:
        if (DrafterKind(self.kind) is not DrafterKind.NGRAM) != bool(self.model):
            raise ValueError(f"a drafter of kind {self.kind} {'takes no' if self.model else 'needs a'} model")
