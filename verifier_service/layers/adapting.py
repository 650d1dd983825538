"""LoRA adapters beside a target's linear layers: each row of a step goes through its own request's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from cluster.checkpoints.adapters import Adapter
from cluster.kernels.packed import PackedLinear

_HEAD = "lm_head"


class Chosen:
    """Which rows of the step at hand go through which adapter: int64 [n] by name."""

    def __init__(self) -> None:
        self.by_adapter: dict[str, Tensor] = {}


class AdaptedLinear(nn.Module):
    """A linear layer x [1, rows, in] -> [1, rows, out] with what adapters add to their rows."""

    def __init__(
        self, whole: nn.Module, parts: Mapping[str, tuple[nn.Module, nn.Module]], chosen: Chosen
    ) -> None:
        super().__init__()
        self._whole = whole
        self._parts = parts
        self._chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self._whole(x))
        for adapter, rows in self._chosen.by_adapter.items():
            part = self._parts.get(adapter)
            if part is not None:
                down, up = part
                y[:, rows] += up(down(x[:, rows]))
        return y


def adapt(model: nn.Module, adapters: Sequence[Adapter], packed: bool) -> Chosen:
    """Puts adapters beside the linear layers of a model, in place, after its own weights were packed if they
    are. Raises ValueError for an adapter that does not fit it."""
    chosen = Chosen()
    names = {name for adapter in adapters for name in adapter.parts}
    modules = dict(model.named_modules())
    for name in sorted(names):
        whole = modules.get(name)
        if not isinstance(whole, nn.Linear | PackedLinear) or name == _HEAD:
            raise ValueError(f"an adapter is for {name!r}, which this model cannot have adapted")
        shape = (whole.out_features, whole.in_features)
        parts = {
            adapter.name: _pair(adapter, name, shape, model, packed)
            for adapter in adapters
            if name in adapter.parts
        }
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, AdaptedLinear(whole, parts, chosen))
    return chosen


def _pair(
    adapter: Adapter, name: str, shape: tuple[int, int], model: nn.Module, packed: bool
) -> tuple[nn.Module, nn.Module]:
    part = adapter.parts[name]
    if (len(part.up), part.down.shape[1]) != shape or part.up.shape[1] != len(part.down):
        raise ValueError(f"the part for {name!r} of adapter {adapter.name!r} has not the shape of its layer")
    like = next(model.parameters())
    return _linear(part.down, like, packed), _linear(part.up, like, packed)


def _linear(weight: Tensor, like: Tensor, packed: bool) -> nn.Module:
    if packed:
        return PackedLinear(weight, None)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.to(like.device, like.dtype), requires_grad=False)
    return linear
