"""Attention over a ragged batch, plugged into transformers' attention interface.

Rows of many sequences lie side by side in one forward. Each row attends to exactly its own prefix, and
its result does not depend on what else is in the batch, bit for bit: decoded rows are computed one by
one, prompt rows in tiles whose edges are fixed by their positions and never by how a prompt was chunked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from verifier_service.kv_cache import SequenceCache

NAME = "truedraft_ragged"
# Prompt rows per attention call; chunks of a prompt end at its multiples.
TILE = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence in a batch: `count` from batch row `row`, at positions `start`..

    Rows before position `tiled_until` belong to the prompt and are computed in tiles.
    """

    cache: SequenceCache
    row: int
    count: int
    start: int
    tiled_until: int


def _attend_row(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """query: [kv_heads, group, head_dim], keys and values: [kv_heads, n, head_dim] -> like query."""
    return F.scaled_dot_product_attention(query[None], keys[None], values[None], scale=scaling)[0]


def _attend_tile(
    query: Tensor, keys: Tensor, values: Tensor, first: int, window: int | None, scaling: float
) -> Tensor:
    """Causal attention of rows at positions first..: query [rows, kv_heads, group, head_dim] -> same."""
    rows, heads, group, dim = query.shape
    positions = torch.arange(first, first + rows, device=query.device)[:, None]
    others = torch.arange(keys.shape[1], device=query.device)[None]
    visible = others <= positions
    if window is not None:
        visible = visible & (others > positions - window)
    flat = query.permute(1, 2, 0, 3).reshape(1, heads, group * rows, dim)
    out = F.scaled_dot_product_attention(
        flat, keys[None], values[None], attn_mask=visible.repeat(group, 1), scale=scaling
    )
    return out.view(heads, group, rows, dim).permute(2, 0, 1, 3)


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    segments: list[Segment] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, rows, head_dim], key and value [1, kv_heads, rows, head_dim], after rotary
    embedding -> [1, rows, heads, head_dim]. Raises ValueError for attention it does not implement.
    """
    if segments is None:
        raise ValueError("the ragged attention needs the segments of the batch")
    for option in ("softcap", "s_aux"):
        if kwargs.get(option) is not None:
            raise ValueError(f"attention with {option} is not supported")
    layer = cast(int, module.layer_idx)
    # Some families (mistral, phi3) pass it from their configuration, others keep it in the module.
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    rows, kv_heads = query.shape[2], key.shape[1]
    queries = query[0].transpose(0, 1).reshape(rows, kv_heads, query.shape[1] // kv_heads, query.shape[3])
    out = torch.empty(rows, *queries.shape[1:-1], value.shape[3], dtype=query.dtype, device=query.device)
    for segment in segments:
        first, last = segment.row, segment.row + segment.count
        keys, values = segment.cache.write(
            layer, segment.start, key[0, :, first:last], value[0, :, first:last]
        )
        position = segment.start
        while position < segment.start + segment.count:
            row = first + position - segment.start
            if position < segment.tiled_until:
                end = min((position // TILE + 1) * TILE, segment.tiled_until, segment.start + segment.count)
                tile = slice(row, row + end - position)
                out[tile] = _attend_tile(
                    queries[tile], keys[:, :end], values[:, :end], position, window, scaling
                )
            else:
                end = position + 1
                begin = 0 if window is None else max(0, end - window)
                out[row] = _attend_row(queries[row], keys[:, begin:end], values[:, begin:end], scaling)
            position = end
    return out.view(1, rows, -1, value.shape[3]), None


def register() -> None:
    """Makes the ragged attention selectable by NAME; it needs no mask."""
    AttentionInterface.register(NAME, ragged_attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
