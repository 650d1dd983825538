"""What block-diffusion drafters read, fused: one row for every token, beside its keys and values."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cluster.checkpoints.errors import CheckpointError
from cluster.drafting.block_diffusion import Fusing
from cluster.drafting.wire import FEATURE_DTYPES
from cluster.kernels.elementwise import norm
from cluster.kernels.linear import linear, pack_weight
from cluster.kernels.tile import PANEL

# A product of so many rows takes hardly longer than one of a single row.
_TOGETHER = 16


class Fuser:
    """Fuses the features of a step's rows, each by itself: on a CPU through our own kernels, bit for bit.

    dtype: what is made, as it is sent; width: numbers of a row; together: see Fuses.
    """

    def __init__(self, fusing: Fusing, device: torch.device, dtype: torch.dtype) -> None:
        self.info = fusing.info
        self.dtype, self.width = FEATURE_DTYPES[fusing.info.dtype], fusing.info.width
        projection = fusing.projection
        self._ours = device.type == "cpu" and dtype == torch.float32
        self.together = _TOGETHER if self._ours else 1
        if self._ours:
            self._panels = pack_weight(projection.fc.float())
            self._norm = projection.norm.float().numpy()
            self._eps = np.float32(projection.eps)
        else:
            self._projection: nn.Module = projection.to(device, dtype)

    def fuse(self, features: Tensor) -> Tensor:
        """[rows, m·d], in the target's precision -> [rows, d]."""
        if not self._ours:
            fused: Tensor = self._projection(features)
            return fused.to(self.dtype)
        rows = np.empty((len(features), self._panels.values.shape[0] * PANEL), np.float32)
        linear(features.numpy(), self._panels, rows)
        out = np.ascontiguousarray(rows[:, : self.width])
        norm(out, self._norm, self._eps, out)
        return torch.from_numpy(out).to(self.dtype)


def check_fusing(fusing: Fusing, layers: int, hidden: int) -> None:
    """Raises CheckpointError for a drafter that was made for a target of another shape."""
    if (fusing.target_layers, fusing.info.width) != (layers, hidden):
        raise CheckpointError(
            f"the drafter was made for a target of {fusing.target_layers} layers of width "
            f"{fusing.info.width}, this one has {layers} of width {hidden}"
        )
