"""Linear layers with weights packed once for a few rows.

A stock float32 linear on a CPU repacks its weight on every call of more than one row, and its result
for a row depends on how many rows came along. oneDNN's kernel on a weight packed for several rows does
neither: a row's bits are the same alone and in any batch (checked at start-up by `invariance`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# The kernel chosen when packing for this many rows is the fastest from 1 to 16 rows, measured.
_PACKED_ROWS = 16
# Projections of one module that read the same input and are computed by one kernel.
_GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedLinear(nn.Module):
    """y = x W^T + b for float32 x [..., in]; replaces nn.Linear."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_ROWS)
        self.bias = bias
        self._doubled = self._single_rows_differ()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        if rows == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        if rows == 1 and self._doubled:
            y = self._multiply(x.expand(2, *x.shape[1:]) if x.dim() > 1 else x.expand(2, -1))
            return y[:1] if x.dim() > 1 else y[0]
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y

    def _single_rows_differ(self) -> bool:
        """With AVX-512 a single row of more than 1,024 inputs is summed in another order than several."""
        probe = torch.linspace(-1.0, 1.0, 2 * self.in_features).view(2, -1)
        return not torch.equal(self._multiply(probe[:1]), self._multiply(probe)[:1])


class PackedGroup:
    """Several projections of the same input in one kernel: fewer, larger reads of memory.

    Either all of them have a bias or none.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        optional: list[Tensor | None] = [linear.bias for linear in linears]
        biases = [bias for bias in optional if bias is not None]
        weights: list[Tensor] = [linear.weight for linear in linears]
        self.linear = PackedLinear(torch.cat(weights), torch.cat(biases) if biases else None)
        self._sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._outputs: list[Tensor] = []

    def output(self, index: int, x: Tensor) -> Tensor:
        """The projection `index` of x; all are computed when x is first seen and handed out once."""
        if x is not self._input:
            self._input = x
            self._outputs = list(self.linear(x).split(self._sizes, dim=-1))
        result = self._outputs[index]
        if index == len(self._sizes) - 1:
            self._input, self._outputs = None, []
        return result


class GroupMember(nn.Module):
    """Stands where one of the group's linears stood; members are called in the group's order."""

    def __init__(self, group: PackedGroup, index: int) -> None:
        super().__init__()
        self.group = group
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.group.output(self.index, x)


def pack(model: nn.Module) -> None:
    """Replaces every float32 nn.Linear of the model, in place."""
    for module in list(model.modules()):
        for names in _GROUPS:
            linears = [getattr(module, name, None) for name in names]
            if all(type(linear) is nn.Linear for linear in linears):
                found = [linear for linear in linears if isinstance(linear, nn.Linear)]
                if len({linear.bias is None for linear in found}) == 1:
                    group = PackedGroup(found)
                    for index, name in enumerate(names):
                        setattr(module, name, GroupMember(group, index))
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child.weight, child.bias))
