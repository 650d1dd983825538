"""The drafting protocol as both of its sides read it: version, limits, the conversion of messages."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from cluster.drafting.features import FeaturesInfo
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Law
from cluster.speculation.messages import SessionSpec, SparseRows
from cluster.speculation.sampling import Sampling
from truedraft.v1 import drafting_pb2, inference_pb2

PROTOCOL_VERSION: Final = 8

# Tokens that one Plan may ask for, in all, and entries of each of their proposals.
MAX_BLOCK_LENGTH: Final = 256
MAX_PROPOSAL_ENTRIES: Final = 256

# Types of fused features.
FEATURE_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of one message with fused features.
MAX_FEATURES_BYTES: Final = 256 * 1024

# A peer that is stopped or cut off without a word is noticed within interval + timeout.
KEEPALIVE_INTERVAL_MS: Final = 2000
KEEPALIVE_TIMEOUT_MS: Final = 2500


class UnsupportedLawError(ValueError):
    """An Open under a law that this drafter cannot serve."""


def open_message(spec: SessionSpec, epoch: int, tokens: list[int]) -> drafting_pb2.Open:
    """Opens a sequence at `tokens`: its prompt and whatever has been committed since."""
    sampling = spec.sampling
    return drafting_pb2.Open(
        sequence=spec.sequence,
        epoch=epoch,
        prompt_ids=tokens,
        sampling=inference_pb2.Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            typical_p=sampling.typical_p,
            eta_cutoff=sampling.eta_cutoff,
        ),
        law=spec.law.name,
        noise_key=spec.noise_key,
        proposal_entries=spec.proposal_entries,
    )


def session_spec(message: drafting_pb2.Open) -> SessionSpec:
    """What an Open says; of the law only its name, all that matters to a drafter.

    Raises UnsupportedLawError, and ValueError for sampling or entries that are out of range.
    """
    if message.law not in LAWS:
        raise UnsupportedLawError(f"unknown law {message.law!r}; known: {', '.join(LAWS)}")
    least, most = (1, MAX_PROPOSAL_ENTRIES) if LAWS[message.law].sends_rows else (0, 0)
    if not least <= message.proposal_entries <= most:
        raise ValueError(
            f"under {message.law} a proposal has {least} to {most} entries, "
            f"{message.proposal_entries} were asked for"
        )
    given = message.sampling
    fields = {name: getattr(given, name) for name in Sampling.__slots__ if given.HasField(name)}
    return SessionSpec(
        sequence=message.sequence,
        prompt_ids=tuple(message.prompt_ids),
        sampling=Sampling(**fields),
        law=Law(message.law),
        noise_key=message.noise_key,
        proposal_entries=message.proposal_entries,
    )


def put_proposal(block: drafting_pb2.Block, proposal: SparseRows, entries: int) -> None:
    """Adds a proposal to a block, in `entries` places a row however few are used, so that the message's
    size says nothing of it. Raises ValueError for a proposal that needs more."""
    rows, width = proposal.ids.shape
    if width > entries:
        raise ValueError(f"a proposal of {width} entries where {entries} were asked for")
    ids = np.zeros((rows, entries), "<u4")
    probs = np.zeros((rows, entries), "<f4")
    ids[:, :width] = proposal.ids.cpu().numpy()
    probs[:, :width] = proposal.probs.cpu().numpy()
    block.proposal_entries = entries
    block.proposal_ids = ids.tobytes()
    block.proposal_probs = probs.tobytes()


def take_proposal(block: drafting_pb2.Block) -> SparseRows | None:
    """A block's proposal, None where it has none. Raises ValueError for one of another size than it says."""
    rows, entries = len(block.ids), block.proposal_entries
    sizes = len(block.proposal_ids), len(block.proposal_probs)
    if sizes != (4 * rows * entries, 4 * rows * entries):
        raise ValueError(f"a proposal of {sizes[0]} and {sizes[1]} bytes for {rows} times {entries} entries")
    if not entries:
        return None
    ids = np.frombuffer(block.proposal_ids, "<u4").astype(np.int64)
    probs = np.frombuffer(block.proposal_probs, "<f4").astype(np.float32)
    return SparseRows(torch.from_numpy(ids).view(rows, entries), torch.from_numpy(probs).view(rows, entries))


def put_parents(block: drafting_pb2.Block, parents: tuple[int, ...] | None) -> None:
    """Adds the shape of a tree; a chain has none."""
    if parents is not None:
        block.parents.extend(parent + 1 for parent in parents)


def take_parents(block: drafting_pb2.Block) -> tuple[int, ...] | None:
    """As of DraftBlock, not checked; None of a chain."""
    return tuple(parent - 1 for parent in block.parents) or None


def feature_rows(rows: Tensor) -> bytes:
    """Rows as they are sent: [n, d] in the type that was agreed on."""
    flat = rows.detach().cpu().contiguous().view(torch.uint8)
    return flat.numpy().tobytes()


def take_features(rows: bytes, info: FeaturesInfo) -> Tensor:
    """[n, d]. Raises ValueError for bytes that are no whole rows."""
    dtype = FEATURE_DTYPES[info.dtype]
    size = info.width * dtype.itemsize
    if not rows or len(rows) % size or len(rows) > MAX_FEATURES_BYTES:
        raise ValueError(f"{len(rows)} bytes of features where a row has {size}")
    return torch.frombuffer(bytearray(rows), dtype=dtype).view(-1, info.width)
