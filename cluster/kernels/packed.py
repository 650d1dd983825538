"""Linear layers of transformers' own models on our packed weights: float32 on a CPU.

A stock linear repacks its weight on every call of more than one row, and its result for a row depends on
how many rows came along. Ours does neither.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from numba.core import config
from torch import Tensor, nn

from cluster.kernels.linear import integers_of, linear, pack_weight
from cluster.kernels.tile import PANEL

_MOST_THREADS: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]


class PackedLinear(nn.Module):
    """y = x W^T + b for float32 x [..., in]; replaces nn.Linear."""

    def __init__(self, weight: Tensor, bias: Tensor | None, integers: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._panels = pack_weight(weight.detach(), integers)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        # Numba has a number for each thread that calls it, torch one for all of them.
        numba.set_num_threads(min(torch.get_num_threads(), _MOST_THREADS))
        rows = x.reshape(-1, self.in_features).contiguous()
        y = np.empty((rows.shape[0], self._panels.values.shape[0] * PANEL), np.float32)
        linear(rows.numpy(), self._panels, y)
        out = torch.from_numpy(y)[:, : self.out_features]
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], self.out_features)


def pack(model: nn.Module, integers: bool = False) -> None:
    """Replaces every nn.Linear of the model, in place. integers: kept as int8, for weights that `quantize`
    rounded."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child.weight, child.bias, integers))


def quantize(model: nn.Module) -> None:
    """Rounds every nn.Linear's weight to integers times a scale for each output, in place (absolute maxima:
    Dettmers et al., arXiv 2208.07339, section 2.1, by rows).

    The model that is left is a model of its own, in float32 wherever it runs; an embedding that is tied to
    the head is rounded along.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            values, scales = integers_of(module.weight.detach())
            module.weight.data = values * scales[:, None]
