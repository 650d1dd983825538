"""The network of block-diffusion drafters: DFlash (arXiv 2602.06036) and DFlash 2, in their published layout.

One pass makes a block: its rows, an anchor and masks after it, see the fused features of the text before the
anchor and one another. Written from the interface of the published checkpoints; that it computes what the
authors' package computes is a test.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

from cluster.drafting.block_diffusion import BlockDiffusionConfig


class Context:
    """Keys and values of a text's fused features, of every layer: [B, kv_heads, tokens, dim] each.

    start: the position of the first that is held; block rows leave nothing behind.
    """

    def __init__(self, layers: int) -> None:
        self.start = 0
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    @property
    def length(self) -> int:
        """The position after the last."""
        return self.start + (0 if self.keys[0] is None else self.keys[0].shape[2])

    def append(self, layer: int, key: Tensor, value: Tensor) -> None:
        held, content = self.keys[layer], self.values[layer]
        self.keys[layer] = key if held is None else torch.cat([held, key], dim=2)
        self.values[layer] = value if content is None else torch.cat([content, value], dim=2)

    def keep_last(self, count: int) -> None:
        """Forgets all but the last positions."""
        surplus = self.length - self.start - count
        if surplus > 0:
            self.start += surplus
            self.keys = [key[:, :, surplus:] for key in self.keys if key is not None]
            self.values = [value[:, :, surplus:] for value in self.values if value is not None]


class Attention(nn.Module):
    """Of block rows over context and block; the projections of both are the same."""

    def __init__(self, config: BlockDiffusionConfig, layer: int) -> None:
        super().__init__()
        qwen = config.qwen
        self.dim: int = qwen.head_dim
        self.layer = layer
        heads: int = qwen.num_attention_heads
        kv_heads: int = qwen.num_key_value_heads or heads
        self.groups = heads // kv_heads
        bias: bool = qwen.attention_bias
        self.q_proj = nn.Linear(qwen.hidden_size, heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(qwen.hidden_size, kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(qwen.hidden_size, kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.dim, qwen.hidden_size, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.dim, eps=qwen.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.dim, eps=qwen.rms_norm_eps)

    def keys_and_values(self, rows: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """rows: [B, n, d] -> [B, kv_heads, n, dim] each, the keys turned by their positions."""
        key = self.k_norm(self.k_proj(rows).unflatten(-1, (-1, self.dim))).transpose(1, 2)
        value = self.v_proj(rows).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        return _turned(key, turns), value

    def forward(
        self, rows: Tensor, turns: tuple[Tensor, Tensor], context: Context, seen: Tensor | None
    ) -> Tensor:
        """rows: [B, n, d]; seen: bool, [B or 1, n, context + n], None for everything."""
        query = self.q_norm(self.q_proj(rows).unflatten(-1, (-1, self.dim))).transpose(1, 2)
        query = _turned(query, turns)
        key, value = self.keys_and_values(rows, turns)
        held, content = context.keys[self.layer], context.values[self.layer]
        if held is not None and content is not None:
            key, value = torch.cat([held, key], dim=2), torch.cat([content, value], dim=2)
        if seen is None:
            out = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        else:
            # As transformers does where there is a mask: the same kernel, the same rounding.
            key, value = (part.repeat_interleave(self.groups, dim=1) for part in (key, value))
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])
        joined: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return joined


class Convolution(nn.Module):
    """DFlash 2's causal convolution within a block, before and after a sublayer; its kernel is the sum of
    a fixed one and of one that each row chooses for each group of channels."""

    def __init__(self, config: BlockDiffusionConfig) -> None:
        super().__init__()
        hidden: int = config.qwen.hidden_size
        self._taps, self._group = config.conv_kernel_size, config.conv_group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self._taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * self._taps * (hidden // self._group), bias=False)

    def kernels(self, rows: Tensor) -> Tensor:
        """[..., n, d] -> [..., n, 2, taps, groups]: of the first convolution and of the second."""
        groups = rows.shape[-1] // self._group
        chosen: Tensor = self.kernel_projection(rows).unflatten(-1, (2, self._taps, groups))
        return chosen

    def convolve(self, rows: Tensor, kernels: Tensor, which: int) -> Tensor:
        """rows: [..., n, d], a block's; a row sees itself and those before it in its block."""
        grouped = rows.unflatten(-1, (-1, self._group))
        out: Tensor = torch.zeros_like(grouped)
        for back in range(self._taps):
            shifted = grouped if back == 0 else F.pad(grouped[..., :-back, :, :], (0, 0, 0, 0, back, 0))
            fixed = self.base_kernel[which, back].to(rows.dtype).unflatten(-1, (-1, self._group))
            out = torch.addcmul(out + fixed * shifted, kernels[..., which, back, :, None], shifted)
        joined: Tensor = out.flatten(-2)
        return joined


class Layer(nn.Module):
    def __init__(self, config: BlockDiffusionConfig, layer: int) -> None:
        super().__init__()
        qwen = config.qwen
        self.self_attn = Attention(config, layer)
        self.mlp = Qwen3MLP(qwen)
        self.input_layernorm = Qwen3RMSNorm(qwen.hidden_size, eps=qwen.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(qwen.hidden_size, eps=qwen.rms_norm_eps)
        self.attention_conv = Convolution(config) if config.selects else None
        self.mlp_conv = Convolution(config) if config.selects else None

    def forward(
        self,
        rows: Tensor,
        blocks: int,
        turns: tuple[Tensor, Tensor],
        context: Context,
        seen: Tensor | None,
    ) -> Tensor:
        """rows: [B, blocks · size, d]."""
        normed = self.input_layernorm(rows)
        rows = rows + _convolved(
            self.attention_conv, normed, blocks, lambda x: self.self_attn(x, turns, context, seen)
        )
        return rows + _convolved(self.mlp_conv, self.post_attention_layernorm(rows), blocks, self.mlp)


def _convolved(convolution: Convolution | None, rows: Tensor, blocks: int, inner: Any) -> Tensor:
    """inner(rows), between the two convolutions where there is one."""
    if convolution is None:
        result: Tensor = inner(rows)
        return result
    apart = rows.unflatten(1, (blocks, -1))
    kernels = convolution.kernels(apart)
    between = inner(convolution.convolve(apart, kernels, 0).flatten(1, 2))
    return convolution.convolve(between.unflatten(1, (blocks, -1)), kernels, 1).flatten(1, 2)


class CandidateSelector(nn.Module):
    """DFlash 2's choice among each position's likeliest tokens, given the one chosen before."""

    def __init__(self, config: BlockDiffusionConfig) -> None:
        super().__init__()
        qwen, rank = config.qwen, config.selector_rank
        self.top_k = config.selector_top_k
        self.predecessor_codebook = nn.Embedding(qwen.vocab_size, rank)
        self.successor_codebook = nn.Embedding(qwen.vocab_size, rank)
        self.hidden_projection = nn.Linear(qwen.hidden_size, rank, bias=False)

    def scores(self, rows: Tensor, unary: Tensor, candidates: Tensor, before: Tensor) -> Tensor:
        """Of n positions' candidates after the tokens `before`, [n]: rows [n, d]; unary, candidates and
        result [n, K]."""
        left = self.predecessor_codebook(before) * self.hidden_projection(rows)
        pairs: Tensor = torch.einsum("br,bkr->bk", left, self.successor_codebook(candidates))
        return unary + pairs


class BlockDiffusionModel(nn.Module):
    """Weights and names as published; fc and hidden_norm make the fused features, the rest drafts.

    Embedding and output head are the target's and are not held here.
    """

    def __init__(self, config: BlockDiffusionConfig) -> None:
        super().__init__()
        qwen = config.qwen
        self.config = config
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(qwen.num_hidden_layers))
        self.norm = Qwen3RMSNorm(qwen.hidden_size, eps=qwen.rms_norm_eps)
        self.fc = nn.Linear(len(config.layer_ids) * qwen.hidden_size, qwen.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(qwen.hidden_size, eps=qwen.rms_norm_eps)
        self.candidate_selector = CandidateSelector(config) if config.selects else None
        self._rotary = Qwen3RotaryEmbedding(qwen)

    def build_rotary(self, device: str) -> None:
        """Rotary factors are in no checkpoint: to be called where the weights were assigned."""
        self._rotary = Qwen3RotaryEmbedding(self.config.qwen).to(device)

    def fuse(self, features: Tensor) -> Tensor:
        """[..., m·d] -> [..., d], what a text's keys and values are made of."""
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def extend(self, context: Context, fused: Tensor) -> None:
        """Adds a text's next rows, [B, n, d], to its context."""
        at = torch.arange(context.length, context.length + fused.shape[1], device=fused.device)
        turns = self._rotary(fused, at[None])
        made = [layer.self_attn.keys_and_values(fused, turns) for layer in self.layers]  # type: ignore[operator,union-attr]
        for number, (key, value) in enumerate(made):
            context.append(number, key, value)

    def forward(
        self,
        embedded: Tensor,
        positions: Tensor,
        context: Context,
        blocks: int = 1,
        seen: Tensor | None = None,
    ) -> Tensor:
        """Hidden rows of blocks: embedded [B, blocks · size, d] at positions [B, blocks · size] -> the same
        shape. seen: which of context and block rows each row attends to; None where there is one block, whose
        rows see what the checkpoint's layers let them see.
        """
        turns = self._rotary(embedded, positions)
        rows = embedded
        for number, layer in enumerate(self.layers):
            mask = self._sight(number, context, embedded.shape[1]) if seen is None else seen
            rows = layer(rows, blocks, turns, context, mask)
        normed: Tensor = self.norm(rows)
        return normed

    def _sight(self, layer: int, context: Context, size: int) -> Tensor | None:
        causal, window = self.config.sight(layer)
        if not causal and not window:
            return None
        end = context.length
        key = torch.arange(context.start, end + size, device=self.norm.weight.device)
        query = torch.arange(end, end + size, device=self.norm.weight.device)[:, None]
        seen = key <= query if causal else torch.ones_like(key <= query)
        if window:
            seen &= query - key < window
            if not causal:
                seen &= key - query < window
        return seen[None]


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Heads [B, heads, n, dim], turned (Su et al., arXiv 2104.09864, halves in place of pairs)."""
    cos, sin = (turn[:, None].to(x.dtype) for turn in turns)
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
