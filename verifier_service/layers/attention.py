"""Attention over a ragged batch: rows of many sequences side by side, each with exactly its own prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from cluster.kernels import attention as kernels
from cluster.kernels.attention import PAGE, Integers
from verifier_service.cache.kv_cache import KVPool, SequenceCache

NAME = "truedraft_ragged"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: `count` from batch row `row`, in slots start.. of its cache; they
    follow the first `start` tokens of its text.

    above: of a tree, for each row the one of these that it follows, which comes before it, -1 for the first;
    None for a chain, where each follows the one before.
    """

    cache: SequenceCache
    row: int
    count: int
    start: int
    above: tuple[int, ...] | None = None

    def positions(self) -> Integers:
        """Each row's place in the text: int64 [count]. Raises ValueError where `above` is no tree."""
        if self.above is None:
            return self.start + np.arange(self.count)
        if len(self.above) != self.count or not all(
            0 <= above < row if row else above == -1 for row, above in enumerate(self.above)
        ):
            raise ValueError(f"each row follows one before it, got {list(self.above)}")
        depths = np.zeros(self.count, np.int64)
        for row, above in enumerate(self.above[1:], start=1):
            depths[row] = depths[above] + 1
        return self.start + depths

    def sight(self, window: int | None) -> Tensor:
        """Which slots each row sees: bool [count, start + count]; window: positions, its own included."""
        length = self.start + self.count
        positions = torch.from_numpy(self.positions())
        slots = torch.arange(length)
        held = torch.cat([slots[: self.start], positions])
        if self.above is None:
            seen = slots <= positions[:, None]
        else:
            seen = torch.zeros(self.count, length, dtype=torch.bool)
            seen[:, : self.start] = True
            for row, above in enumerate(self.above):
                if above >= 0:
                    seen[row] = seen[above]
                seen[row, self.start + row] = True
        return seen if window is None else seen & (held > positions[:, None] - window)


class Batch:
    """The segments of one forward and where their keys and values lie in their `pool`.

    tables: pages of each segment's sequence, int64 [segments, most]; owners, positions, slots: each row's
    segment, its place in the text and that of its keys and values, int64 [rows]; above: of rows of a tree the
    row that each follows, else -1. Raises OutOfPagesError; ValueError for rows in pages that others may read.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.pool: KVPool = segments[0].cache.pool
        for segment in segments:
            if segment.start < segment.cache.fixed:
                raise ValueError("rows would be written to a page that other sequences may read")
            segment.cache.reserve(segment.start + segment.count)
        most = max(len(segment.cache.pages) for segment in segments)
        self.tables = np.zeros((len(segments), most), np.int64)
        for table, segment in zip(self.tables, segments, strict=True):
            table[: len(segment.cache.pages)] = segment.cache.pages
        counts = [segment.count for segment in segments]
        self.owners = np.repeat(np.arange(len(segments)), counts)
        self.slots = np.concatenate([segment.start + np.arange(segment.count) for segment in segments])
        self.positions = np.concatenate([segment.positions() for segment in segments])
        self.above = np.full_like(self.slots, -1)
        for segment in segments:
            if segment.above is not None:
                rows = slice(segment.row + 1, segment.row + segment.count)
                self.above[rows] = segment.row + np.array(segment.above[1:], np.int64)

    @property
    def places(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """Tables, owners, positions, slots and above, as kernels take them."""
        return self.tables, self.owners, self.positions, self.slots, self.above

    @property
    def written(self) -> tuple[Integers, Integers]:
        """The page that each row is written to, and its place in it: int64 [rows] each."""
        return self.tables[self.owners, self.slots // PAGE], self.slots % PAGE


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    batch: Batch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Writes the rows' keys and values to their pages and attends to what is before each row, as transformers
    calls it: query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim], after rotary embedding
    -> [1, rows, heads, dim].

    Raises ValueError for attention it does not implement.
    """
    if batch is None:
        raise ValueError("the ragged attention needs the segments of the batch")
    for option in ("softcap", "s_aux"):
        if kwargs.get(option) is not None:
            raise ValueError(f"attention with {option} is not supported")
    layer, dim = cast(int, module.layer_idx), query.shape[3]
    # Some families (mistral, phi3) pass it from their configuration, others keep it in the module.
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    room = batch.pool.dim - dim
    rows, keys, values = (
        F.pad(tensor[0].transpose(0, 1), (0, room)).contiguous() for tensor in (query, key, value)
    )
    attend = _by_rows if query.device.type == "cpu" and query.dtype == torch.float32 else _by_segments
    out = attend(batch, layer, rows * scaling, keys, values, window)
    return out[None, :, :, :dim], None


def _by_rows(
    batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None
) -> Tensor:
    """Row by row, none by what else is in the batch, bit for bit. query: [rows, heads, dim], scaled."""
    keys, values = batch.pool.keys[layer].numpy(), batch.pool.values[layer].numpy()
    kernels.store(key.numpy(), value.numpy(), keys, values, batch.tables, batch.owners, batch.slots)
    out = torch.empty_like(query)
    kernels.attend(query.numpy(), keys, values, *batch.places, window or 0, out.numpy())
    return out


def _by_segments(
    batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None
) -> Tensor:
    """With torch's own attention, segment by segment."""
    keys, values = batch.pool.keys[layer], batch.pool.values[layer]
    own, place = (torch.from_numpy(part).to(query.device) for part in batch.written)
    keys[own, :, :, place] = key
    values[own, :, place] = value
    group = query.shape[1] // key.shape[1]
    pieces = []
    for segment, table in zip(batch.segments, batch.tables, strict=True):
        length = segment.start + segment.count
        pages = torch.from_numpy(table[: -(-length // PAGE)]).to(query.device)
        # [pages, heads, dim, PAGE] and [pages, heads, PAGE, dim] -> [heads, tokens, dim]
        held = keys[pages].permute(1, 0, 3, 2).flatten(1, 2)[:, :length]
        content = values[pages].transpose(0, 1).flatten(1, 2)[:, :length]
        queries = query[segment.row : segment.row + segment.count].transpose(0, 1)
        result = F.scaled_dot_product_attention(
            queries[None],
            held.repeat_interleave(group, 0)[None],
            content.repeat_interleave(group, 0)[None],
            attn_mask=segment.sight(window).to(query.device),
            scale=1.0,
        )
        pieces.append(result[0].transpose(0, 1))
    return torch.cat(pieces)


def register() -> None:
    """Makes the ragged attention selectable by NAME; it needs no mask."""
    AttentionInterface.register(NAME, ragged_attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
