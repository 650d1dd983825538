"""The layers of llama-like models without transformers' overhead, which costs a fifth of a one-row step.

Same mathematics, same packed weights, fewer and cheaper operators. Every other family, and every model
whose logits come out different, runs through transformers' own layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from verifier_service.attention import Batch, attend
from verifier_service.packing import GroupMember, PackedLinear

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
# torch's elementwise kernels split more values than these among threads, wherever that falls. At the end of
# a part, values are computed one by one, by another exponential than in vectors of at most _LANES.
_SERIAL = 32768
_LANES = 64


class _Norm:
    """RMSNorm (Zhang and Sennrich, arXiv 1910.07467, section 3): x / sqrt(mean(x^2) + eps) * w."""

    def __init__(self, module: Any) -> None:
        size = module.weight.shape[0]
        # With sums in place of means: x / sqrt(|x|^2 + n eps) * (w sqrt(n)).
        self._weight = module.weight.detach() * math.sqrt(size)
        self._floor = torch.full((1,), size * module.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * torch.addcmul(self._floor, length, length).rsqrt_()).mul_(self._weight)


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: _Norm
    qkv: PackedLinear
    query_norm: _Norm | None
    key_norm: _Norm | None
    out: PackedLinear
    before_mlp: _Norm
    gate_up: PackedLinear
    activation: nn.Module
    down: PackedLinear


def _by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function of x [rows, n] whose bits do not depend on the number of rows or of threads."""
    width = x.shape[-1]
    step = max(1, (_SERIAL - 1) // width) if width % _LANES == 0 else 1
    if x.shape[0] <= step:
        return function(x)
    return torch.cat([function(part) for part in x.split(step)])


def _grouped(first: nn.Module) -> PackedLinear:
    if not isinstance(first, GroupMember):
        raise TypeError("projections of one input are not packed together")
    return first.group.linear


def _layer(module: Any) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        before_attention=_Norm(module.input_layernorm),
        qkv=_grouped(attention.q_proj),
        query_norm=_Norm(query_norm) if query_norm is not None else None,
        key_norm=_Norm(key_norm) if key_norm is not None else None,
        out=attention.o_proj,
        before_mlp=_Norm(module.post_attention_layernorm),
        gate_up=_grouped(mlp.gate_proj),
        activation=mlp.act_fn,
        down=mlp.down_proj,
    )


def can_decode(model: PreTrainedModel) -> bool:
    """Whether the model is of a family whose layers are known here, without sliding windows."""
    config = model.config
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if config.model_type == "mistral" and config.sliding_window is not None:
        windows.add("sliding_attention")
    return config.model_type in _FAMILIES and not windows


class Decoder:
    """Runs a packed model that `can_decode` accepts. Raises TypeError for one that is not packed."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._embedding: Tensor = model.model.embed_tokens.weight
        self._rotary: nn.Module = model.model.rotary_emb
        self._layers = [_layer(module) for module in model.model.layers]
        self._norm = _Norm(model.model.norm)
        self._head: PackedLinear = model.lm_head
        attention = model.model.layers[0].self_attn
        self._scaling: float = attention.scaling
        self._dim: int = attention.head_dim
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads

    def forward(self, tokens: Tensor, positions: Tensor, batch: Batch, keep: Tensor) -> Tensor:
        """tokens, positions: int64 [rows]; keep: rows that need logits; returns float32 [len(keep), V]."""
        hidden = F.embedding(tokens, self._embedding)
        turn = self._turn(hidden, positions)
        for index, layer in enumerate(self._layers):
            hidden.add_(self._attention(index, layer, layer.before_attention(hidden), turn, batch))
            gate, up = layer.gate_up(layer.before_mlp(hidden)).chunk(2, dim=-1)
            hidden.add_(layer.down(_by_rows(layer.activation, gate).mul_(up)))
        logits: Tensor = self._head(self._norm(hidden[keep]))
        return logits

    def _turn(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the rows' positions: [rows, 1, head_dim]. The signs of a half turn go into the
        sine, so that rotating is one roll."""
        step = max(1, (_SERIAL - 1) // self._dim)
        parts = [self._rotary(hidden[None], part[None]) for part in positions.split(step)]
        cos, sin = (torch.cat(part, dim=1)[0, :, None] for part in zip(*parts, strict=True))
        half = self._dim // 2
        return cos, torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)

    def _attention(
        self, index: int, layer: _Layer, x: Tensor, turn: tuple[Tensor, Tensor], batch: Batch
    ) -> Tensor:
        projected = layer.qkv(x).unflatten(-1, (-1, self._dim))
        rotated = projected[:, : self._heads + self._kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = rotated.split((self._heads, self._kv_heads), dim=1)
            rotated = torch.cat((layer.query_norm(query), layer.key_norm(key)), dim=1)
        cos, sin = turn
        rotated = (rotated * cos).addcmul_(rotated.roll(self._dim // 2, -1), sin)
        query, key = rotated[:, : self._heads], rotated[:, self._heads :]
        value = projected[:, self._heads + self._kv_heads :]
        attended: Tensor = layer.out(attend(batch, index, query, key, value, self._scaling, None))
        return attended
