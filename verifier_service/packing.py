"""Linear layers of transformers' own models on our packed weights: float32 on a CPU.

A stock linear repacks its weight on every call of more than one row, and its result for a row depends on
how many rows came along. Ours does neither.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cluster.kernels.linear import linear, pack_weight
from cluster.kernels.tile import PANEL


class PackedLinear(nn.Module):
    """y = x W^T + b for float32 x [..., in]; replaces nn.Linear."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._panels = pack_weight(weight.detach())
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        y = np.empty((rows.shape[0], self._panels.shape[0] * PANEL), np.float32)
        linear(rows.numpy(), self._panels, y)
        out = torch.from_numpy(y)[:, : self.out_features]
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], self.out_features)


def pack(model: nn.Module) -> None:
    """Replaces every nn.Linear of the model, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child.weight, child.bias))
