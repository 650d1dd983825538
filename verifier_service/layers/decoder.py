"""Llama-like models through our own kernels: float32 on a CPU.

Every other family, and every model whose logits come out different, runs through transformers' own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from cluster.kernels.elementwise import norm
from cluster.kernels.layers import GATES, LayerWeights, Shape, run_layers
from cluster.kernels.linear import Floats, Panels, linear, pack_weight
from cluster.kernels.tile import PANEL
from verifier_service.layers.attention import Batch

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}


def can_decode(model: PreTrainedModel) -> bool:
    """Whether the model is of a family whose layers are known here, without biases in unusual places."""
    config = model.config
    if config.model_type not in _FAMILIES or config.hidden_act != "silu":
        return False
    first = model.model.layers[0]
    unbiased = (first.self_attn.o_proj, first.mlp.gate_proj, first.mlp.up_proj, first.mlp.down_proj)
    return all(linear.bias is None for linear in (*unbiased, model.lm_head))


class Decoder:
    """Takes over the weights of a model that `can_decode` accepts. room: what heads are filled up to;
    integers: products are kept as int8, for weights that `quantize` rounded; taps: layers, counted from 0
    and ascending, whose outputs are read, after the last one the normed output."""

    def __init__(self, model: Any, room: int, integers: bool = False, taps: Sequence[int] = ()) -> None:
        config, layers = model.config, model.model.layers
        attention = layers[0].self_attn
        self._vocab: int = config.vocab_size
        self._embedding: Floats = _array(model.model.embed_tokens.weight)
        self._norm: Floats = _array(model.model.norm.weight)
        self._head = pack_weight(model.lm_head.weight.detach(), integers)
        self._rotary = model.model.rotary_emb
        self._turns: tuple[Floats, Floats] = _turns(self._rotary, 1)
        self._shape = Shape(
            heads=config.num_attention_heads,
            dim=attention.head_dim,
            inner=config.intermediate_size,
            eps=model.model.norm.variance_epsilon,
            scale=attention.scaling,
        )
        self._eps = np.float32(self._shape.eps)
        self._weights = _layer_weights(layers, room, integers)
        self._windows = np.array([_window(layer.self_attn, config) for layer in layers], np.int64)
        self._taps = np.array(taps, np.int64)
        self._normed = bool(taps) and taps[-1] == len(layers) - 1

    def forward(
        self, tokens: Tensor, positions: Tensor, batch: Batch, keep: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """tokens, positions: int64 [rows]; keep: rows that need logits.

        Returns those, float32 [len(keep), V], and outputs of the tapped layers side by side, [rows, m·d].
        """
        hidden: Floats = self._embedding[tokens.numpy()]
        cos, sin = self._turned(int(positions.max()) + 1)
        keys, values = batch.pool.keys.numpy(), batch.pool.values.numpy()
        size = hidden.shape[1]
        tapped = np.empty((len(hidden), len(self._taps) * size), np.float32)
        given = self._weights, self._shape, cos, sin, keys, values, *batch.places, self._windows
        run_layers(hidden, *given, self._taps, tapped)
        if self._normed:
            rows = np.empty_like(hidden)
            norm(hidden, self._norm, self._eps, rows)
            tapped[:, -size:] = rows
        last = hidden[keep.numpy()]
        norm(last, self._norm, self._eps, last)
        logits = np.empty((len(last), self._head.values.shape[0] * PANEL), np.float32)
        linear(last, self._head, logits)
        features = torch.from_numpy(tapped) if len(self._taps) else None
        return torch.from_numpy(logits)[:, : self._vocab], features

    def _turned(self, positions: int) -> tuple[Floats, Floats]:
        """Cosine and sine of at least that many positions: [n, dim] each."""
        if len(self._turns[0]) < positions:
            self._turns = _turns(self._rotary, 2 * positions)
        return self._turns


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _turns(rotary: Any, positions: int) -> tuple[Floats, Floats]:
    cos, sin = rotary(torch.zeros(1), torch.arange(positions)[None])
    return _array(cos[0]), _array(sin[0])


def _window(attention: Any, config: Any) -> int:
    """Positions that a layer's rows see; 0 for all. Mistral's layers all follow its configuration."""
    window = (
        config.sliding_window
        if config.model_type == "mistral"
        else getattr(attention, "sliding_window", None)
    )
    return window or 0


def _layer_weights(layers: Any, room: int, integers: bool) -> LayerWeights:
    """room: what heads are filled up to."""

    def stacked(part: Callable[[Any], Floats]) -> Floats:
        return np.stack([part(layer) for layer in layers])

    def packed(part: Callable[[Any], Tensor]) -> Panels:
        values, scales = zip(*(pack_weight(part(layer).detach(), integers) for layer in layers), strict=True)
        return Panels(np.stack(values), np.stack(scales))

    dim = layers[0].self_attn.head_dim
    nothing = np.zeros(0, np.float32)

    def qkv(layer: Any) -> Tensor:
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        return torch.cat([_widened(part.weight.detach(), dim, room) for part in parts])

    def bias(layer: Any) -> Floats:
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        if parts[0].bias is None:
            return nothing
        return _array(torch.cat([_widened(part.bias.detach()[:, None], dim, room) for part in parts])[:, 0])

    def head_norm(layer: Any, name: str) -> Floats:
        module = getattr(layer.self_attn, name, None)
        return nothing if module is None else _array(module.weight)

    return LayerWeights(
        before_attention=stacked(lambda layer: _array(layer.input_layernorm.weight)),
        qkv=packed(qkv),
        qkv_bias=stacked(bias),
        query_norm=stacked(lambda layer: head_norm(layer, "q_norm")),
        key_norm=stacked(lambda layer: head_norm(layer, "k_norm")),
        out=packed(lambda layer: _widened(layer.self_attn.o_proj.weight.detach().T, dim, room).T),
        before_mlp=stacked(lambda layer: _array(layer.post_attention_layernorm.weight)),
        gate_up=packed(lambda layer: _gate_up(layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)),
        down=packed(lambda layer: layer.mlp.down_proj.weight),
    )


def _widened(weight: Tensor, dim: int, room: int) -> Tensor:
    """Rows of heads, [heads * dim, n], each head filled up with zeros: [heads * room, n]."""
    heads = weight.unflatten(0, (-1, dim))
    return torch.nn.functional.pad(heads, (0, 0, 0, room - dim)).flatten(0, 1)


def _gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Both in panels of GATES gates and the ups that belong to them."""
    surplus = -gate.shape[0] % GATES
    parts = [
        torch.nn.functional.pad(part.detach(), (0, 0, 0, surplus)).unflatten(0, (-1, GATES))
        for part in (gate, up)
    ]
    return torch.cat(parts, dim=1).flatten(0, 1)
