"""The keys and values of one sequence."""

from __future__ import annotations

from torch import Tensor

# Attention reads keys in multiples of it, the surplus masked.
_STEP = 64


def padded(length: int) -> int:
    """How many keys are read for a prefix of `length` tokens."""
    return -(-length // _STEP) * _STEP


class SequenceCache:
    """Room for `capacity` tokens, allocated per layer when the layer first writes.

    `length` is how many tokens are valid; rolling back is setting it to less.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        """Puts rows at positions start..; key, value: [rows, kv_heads, head_dim].

        Raises ValueError beyond the capacity.
        """
        end = start + key.shape[0]
        if end > self.capacity:
            raise ValueError(f"a cache of {self.capacity} tokens has no room for {end}")
        if layer not in self._layers:
            self._layers[layer] = (self._room(key), self._room(value))
        keys, values = self._layers[layer]
        keys[start:end] = key
        values[start:end] = value

    def read(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` keys and values: views [kv_heads, count, head_dim]; count: `padded`."""
        keys, values = self._layers[layer]
        return keys[:count].transpose(0, 1), values[:count].transpose(0, 1)

    def _room(self, like: Tensor) -> Tensor:
        # Zeros: what is masked still enters a product, and there a NaN would survive.
        return like.new_zeros(padded(self.capacity), *like.shape[1:])
