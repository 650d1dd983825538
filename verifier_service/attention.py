"""Attention over a ragged batch: rows of many sequences side by side, each with exactly its own prefix.

A row's result does not depend on what else is in the batch, bit for bit. Rows are computed in tiles
whose shape never follows from the batch: prompt rows in tiles whose edges are fixed by their positions,
however a prompt was chunked; decoded rows in tiles of one size, filled up, over keys whose number is
rounded up and masked. That no row's bits depend on its place in a tile is left to the start-up check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from verifier_service.kv_cache import SequenceCache, padded

NAME = "truedraft_ragged"
# Prompt rows per attention call; chunks of a prompt end at its multiples.
TILE = 64
# Decoded rows per attention call. More make blocks cheaper and a single row dearer.
_DECODED_TILE = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: `count` from batch row `row`, at positions `start`..

    Rows before position `tiled_until` belong to the prompt and are computed in its tiles.
    """

    cache: SequenceCache
    row: int
    count: int
    start: int
    tiled_until: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows of one attention call. source: batch rows of its queries, the last repeated to fill it up;
    count: how many are no repetitions; mask: added to scores, [group * size, keys].
    """

    cache: SequenceCache
    count: int
    source: Tensor
    keys: int
    mask: Tensor


class Batch:
    """The segments of one forward, and the tiles that its layers share."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self.segments = segments
        self._device = device
        self._tiles: dict[tuple[int, int | None], list[_Tile]] = {}

    def tiles(self, group: int, window: int | None, dtype: torch.dtype) -> list[_Tile]:
        """group: query heads to a key head; window: positions that a row sees, its own included."""
        if (group, window) not in self._tiles:
            self._tiles[group, window] = [
                self._tile(segment, first, last, group, window, dtype)
                for segment in self.segments
                for first, last in _edges(segment)
            ]
        return self._tiles[group, window]

    def _tile(
        self, segment: Segment, first: int, last: int, group: int, window: int | None, dtype: torch.dtype
    ) -> _Tile:
        count = last - first
        size = count if first < segment.tiled_until else _DECODED_TILE
        place = torch.arange(size, device=self._device).clamp(max=count - 1)
        own, others = (first + place)[:, None], torch.arange(padded(last), device=self._device)[None]
        hidden = others > own
        if window is not None:
            hidden |= others <= own - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, -torch.inf)
        source = segment.row + first - segment.start + place
        return _Tile(segment.cache, count, source, padded(last), mask.repeat(group, 1))


def _edges(segment: Segment) -> list[tuple[int, int]]:
    """First and one past the last position of each of a segment's tiles."""
    edges, position, end = [], segment.start, segment.start + segment.count
    while position < end:
        if position < segment.tiled_until:
            last = min((position // TILE + 1) * TILE, segment.tiled_until, end)
        else:
            last = min(position + _DECODED_TILE, end)
        edges.append((position, last))
        position = last
    return edges


def attend(
    batch: Batch, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Writes the rows' keys and values to their caches and attends to each row's own prefix.

    query: [rows, heads, head_dim]; key, value: [rows, kv_heads, head_dim]; returns [rows, heads * head_dim].
    """
    for segment in batch.segments:
        rows = slice(segment.row, segment.row + segment.count)
        segment.cache.write(layer, segment.start, key[rows], value[rows])
    heads, dim = key.shape[1], query.shape[2]
    group = query.shape[1] // heads
    by_head = query.unflatten(1, (heads, group)).permute(1, 2, 0, 3)
    pieces = []
    for tile in batch.tiles(group, window, query.dtype):
        keys, values = tile.cache.read(layer, tile.keys)
        queries = by_head.index_select(2, tile.source).view(1, heads, -1, dim)
        result = F.scaled_dot_product_attention(
            queries, keys[None], values[None], attn_mask=tile.mask, scale=scaling
        )
        pieces.append(result[0].unflatten(1, (group, -1)).permute(2, 0, 1, 3)[: tile.count])
    return (torch.cat(pieces) if len(pieces) > 1 else pieces[0]).flatten(1)


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
    """`attend` as transformers calls it: query [1, heads, rows, head_dim], key and value
    [1, kv_heads, rows, head_dim], after rotary embedding -> [1, rows, heads, head_dim].

    Raises ValueError for attention it does not implement.
    """
    if batch is None:
        raise ValueError("the ragged attention needs the segments of the batch")
    for option in ("softcap", "s_aux"):
        if kwargs.get(option) is not None:
            raise ValueError(f"attention with {option} is not supported")
    layer = cast(int, module.layer_idx)
    # Some families (mistral, phi3) pass it from their configuration, others keep it in the module.
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    rows, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = attend(batch, layer, rows, keys, values, scaling, window)
    return out.view(1, query.shape[2], query.shape[1], value.shape[3]), None


def register() -> None:
    """Makes the ragged attention selectable by NAME; it needs no mask."""
    AttentionInterface.register(NAME, ragged_attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
