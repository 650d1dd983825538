"""All layers of a llama-like model over the rows of a step, in one compiled call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import intp, prange

from cluster.kernels import compiled
from cluster.kernels.attention import Integers, attend, store
from cluster.kernels.elementwise import exponential, inverse_rms, norm
from cluster.kernels.linear import Floats, Panels, add_linear, linear, one_of, panel_product
from cluster.kernels.tile import PANEL

# A panel of the gated unit holds this many gates, then the ups that belong to them.
GATES = PANEL // 2
# Rows whose heads one thread has turned sooner than several would have started.
_FEW = 4


class LayerWeights(NamedTuple):
    """Of all layers. Norms: [layers, hidden]; products: a weight for each layer; qkv_bias: [layers, out];
    query_norm, key_norm: [layers, dim]; those of the last three that a model lacks: [layers, 0].

    The outputs of qkv are its heads one after another, each filled up with zeros to the cache's dimension,
    as are the inputs of out.
    """

    before_attention: Floats
    qkv: Panels
    qkv_bias: Floats
    query_norm: Floats
    key_norm: Floats
    out: Panels
    before_mlp: Floats
    gate_up: Panels
    down: Panels


class Shape(NamedTuple):
    """dim: of a head; inner: of the gated unit; scale: of the queries."""

    heads: int
    dim: int
    inner: int
    eps: float
    scale: float


@compiled()
def _rotate_row(
    projected: Floats,
    bias: Floats,
    query_norm: Floats,
    key_norm: Floats,
    shape: Shape,
    c: Floats,
    s: Floats,
    query: Floats,
    key: Floats,
    value: Floats,
) -> None:
    heads, kv_heads, room = query.shape[0], key.shape[0], query.shape[1]
    half, eps = shape.dim // 2, np.float32(shape.eps)
    for i in range(bias.shape[0]):
        projected[i] += bias[i]
    for head in range(heads + kv_heads):
        x = projected[head * room : head * room + shape.dim]
        if head < heads:
            out, weight, factor = query[head], query_norm, np.float32(shape.scale)
        else:
            out, weight, factor = key[head - heads], key_norm, np.float32(1)
        if weight.shape[0]:
            length = inverse_rms(x, eps)
            for i in range(shape.dim):
                x[i] = x[i] * length * weight[i]
        for i in range(half):
            left, right = x[i], x[half + i]
            out[i] = (left * c[i] - right * s[i]) * factor
            out[half + i] = (right * c[half + i] + left * s[half + i]) * factor
    for head in range(kv_heads):
        start = (heads + kv_heads + head) * room
        value[head] = projected[start : start + room]


@compiled(parallel=True)
def _rotate(
    projected: Floats,
    bias: Floats,
    query_norm: Floats,
    key_norm: Floats,
    shape: Shape,
    cos: Floats,
    sin: Floats,
    positions: Integers,
    query: Floats,
    key: Floats,
    value: Floats,
) -> None:
    """Adds the bias, norms the heads, turns them by their positions (Su et al., arXiv 2104.09864, section
    3.4.2, halves in place of pairs), scales the queries. projected: [rows, qkv]; cos, sin: [positions, dim].
    """
    rows = projected.shape[0]
    if rows <= _FEW:
        for row in range(rows):
            c, s = cos[positions[row]], sin[positions[row]]
            given = projected[row], bias, query_norm, key_norm, shape, c, s
            _rotate_row(*given, query[row], key[row], value[row])
    else:
        for row in prange(rows):
            c, s = cos[positions[row]], sin[positions[row]]
            given = projected[row], bias, query_norm, key_norm, shape, c, s
            _rotate_row(*given, query[row], key[row], value[row])


@compiled(parallel=True)
def _gated(x: Floats, w: Panels, y: Floats) -> None:
    """y [rows, inner] = silu(gate) * up, both from w (Shazeer, arXiv 2002.05202, section 2, SwiGLU)."""
    rows, depth = x.shape
    left = intp(x.ctypes.data)
    for panel in prange(w.values.shape[0]):
        both = np.empty((rows, PANEL), np.float32)
        panel_product(left, rows, depth, w, panel, intp(both.ctypes.data), PANEL)
        first = panel * GATES
        count = min(GATES, y.shape[1] - first)
        for row in range(rows):
            gate, up, out = both[row, :GATES], both[row, GATES:], y[row, first : first + count]
            for i in range(count):
                out[i] = gate[i] / (np.float32(1) + exponential(-gate[i])) * up[i]


@compiled()
def run_layers(
    hidden: Floats,
    weights: LayerWeights,
    shape: Shape,
    cos: Floats,
    sin: Floats,
    keys: Floats,
    values: Floats,
    tables: Integers,
    owners: Integers,
    positions: Integers,
    slots: Integers,
    above: Integers,
    windows: Integers,
    taps: Integers,
    tapped: Floats,
) -> None:
    """hidden: [rows, hidden], embeddings in, what the last norm takes out; cos, sin: [positions, dim]; keys,
    values: [layers, pages, …], with tables, owners, positions, slots and above as in `attend`; windows:
    [layers]; taps: ascending, [m], layers whose outputs are put side by side into tapped, [rows, m · hidden].
    """
    rows, size = hidden.shape
    kv_heads, room = keys.shape[2], keys.shape[3]
    eps = np.float32(shape.eps)
    normed = np.empty((rows, size), np.float32)
    projected = np.empty((rows, weights.qkv.values.shape[1] * PANEL), np.float32)
    # Zeros: what fills a head up to the cache's dimension stays.
    query = np.zeros((rows, shape.heads, room), np.float32)
    key = np.zeros((rows, kv_heads, room), np.float32)
    value = np.empty((rows, kv_heads, room), np.float32)
    attended = np.empty((rows, shape.heads, room), np.float32)
    activated = np.empty((rows, shape.inner), np.float32)
    taken = 0
    joined = attended.reshape(rows, shape.heads * room)
    for layer in range(weights.qkv.values.shape[0]):
        norm(hidden, weights.before_attention[layer], eps, normed)
        linear(normed, one_of(weights.qkv, layer), projected)
        _rotate(
            projected,
            weights.qkv_bias[layer],
            weights.query_norm[layer],
            weights.key_norm[layer],
            shape,
            cos,
            sin,
            positions,
            query,
            key,
            value,
        )
        store(key, value, keys[layer], values[layer], tables, owners, slots)
        attend(
            query,
            keys[layer],
            values[layer],
            tables,
            owners,
            positions,
            slots,
            above,
            windows[layer],
            attended,
        )
        add_linear(joined, one_of(weights.out, layer), hidden)
        norm(hidden, weights.before_mlp[layer], eps, normed)
        _gated(normed, one_of(weights.gate_up, layer), activated)
        add_linear(activated, one_of(weights.down, layer), hidden)
        if taken < taps.shape[0] and taps[taken] == layer:
            tapped[:, taken * size : (taken + 1) * size] = hidden
            taken += 1
