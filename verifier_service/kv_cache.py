"""The keys and values of one sequence."""

from __future__ import annotations

import torch
from torch import Tensor


class SequenceCache:
    """Room for `capacity` tokens, allocated per layer when the layer first writes.

    `length` is how many tokens are valid; rolling back is setting it to less.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Puts rows at positions start.. and returns all keys and values up to their end.

        key, value: [kv_heads, rows, head_dim]. Returns views [kv_heads, start + rows, head_dim].
        """
        end = start + key.shape[1]
        if layer not in self._layers:
            self._layers[layer] = (self._room(key), self._room(value))
        keys, values = self._layers[layer]
        keys[:, start:end] = key
        values[:, start:end] = value
        return keys[:, :end], values[:, :end]

    def _room(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape[0], self.capacity, like.shape[2], dtype=like.dtype, device=like.device)
