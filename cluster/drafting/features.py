"""What a block-diffusion drafter reads of its target: the hidden states after some of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class FeaturesInfo:
    """The fused features that a verifier makes, or a drafter reads. layers: counted from 0; digest: of the
    projection's weights; dtype: of the numbers on the wire; width: numbers of a token, not sent."""

    layers: tuple[int, ...]
    digest: str
    dtype: str
    width: int


def default_layer_ids(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """Which layers a drafter of so many layers reads unless its checkpoint says otherwise (DFlash, arXiv
    2602.06036): spread from the second to the last but two.

    Layer `id` is meant counted from 0, so that its output is transformers' hidden_states[id + 1].
    """
    if draft_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers))


class LayerTaps:
    """Keeps what chosen layers of a transformers model put out in its last forward, until `close`.

    ids: layers, counted from 0. After the last layer the output is the normed one, as in transformers'
    hidden_states. Raises ValueError for layers that the model does not have.
    """

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        decoder = model.get_decoder()
        count = len(decoder.layers)
        if not ids or min(ids) < 0 or max(ids) >= count:
            raise ValueError(f"the drafter reads layers {list(ids)}, the target has {count}, from 0")
        self._outputs: list[Tensor] = [torch.empty(0)] * len(ids)
        self._handles = []
        for place, layer in enumerate(ids):
            module: nn.Module = decoder.layers[layer] if layer < count - 1 else decoder.norm
            self._handles.append(module.register_forward_hook(self._keeper(place)))

    def _keeper(self, place: int) -> Any:
        def keep(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
            self._outputs[place] = output[0] if isinstance(output, tuple) else output

        return keep

    def take(self) -> Tensor:
        """[..., rows, m·d]: the features of the last forward's rows, layer after layer."""
        return torch.cat(self._outputs, dim=-1)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
