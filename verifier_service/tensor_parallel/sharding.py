"""Which part of a target a rank holds, by the plan that transformers has for its family.

A plan cuts some products by their outputs ("colwise") and those that read them by their inputs ("rowwise"),
whose partial results are summed over ranks. In float32 on a CPU the latter are cut by their outputs as well,
and what they read is gathered first: every output is one chain of multiply-adds, as in one process, so that
the logits are the same bits however many ranks there are, for the price of gathering before and after.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from cluster.kernels.packed import PackedLinear
from verifier_service.tensor_parallel.ranks import Ranks

_COLWISE, _ROWWISE = "colwise", "rowwise"
_GATHERED, _SPLIT = "colwise_gather_output", "rowwise_split_input"
# Normalises each head by itself: nothing to do where there are no gradients.
_WHOLE = "replicated_with_grad_allreduce"
_STYLES = {_COLWISE, _ROWWISE, _GATHERED, _SPLIT, _WHOLE}
_QUERIES = "self_attn.q_proj"


@dataclass(frozen=True, slots=True)
class Shards:
    """How a model was divided. kv_heads: heads of keys and values that this rank holds."""

    ranks: Ranks
    kv_heads: int


def check_divisible(config: PreTrainedConfig, size: int) -> None:
    """Raises ValueError for a model that cannot be divided among so many ranks."""
    text = config.get_text_config()
    plan: Mapping[str, str] = getattr(text, "base_model_tp_plan", None) or {}
    if not plan:
        raise ValueError(f"models of type {text.model_type!r} have no plan for tensor parallelism")
    if others := sorted(set(plan.values()) - _STYLES):
        raise ValueError(f"models of type {text.model_type!r} are divided in unsupported ways: {others[0]}")
    counts = {"units of the MLP": text.intermediate_size}
    if _cuts_heads(plan):
        counts["attention heads"] = text.num_attention_heads
        counts["heads of keys and values"] = _kv_heads(text)
    for what, count in counts.items():
        if count % size:
            raise ValueError(
                f"tensor_parallel_size = {size} does not divide {what}, of which this model has {count}"
            )


def shard(model: PreTrainedModel, ranks: Ranks, packed: bool, integers: bool = False) -> Shards:
    """Leaves this rank's part of a model that `check_divisible` accepts, in place. packed: for our own
    kernels, in float32 on a CPU; integers: see `pack`."""
    plan = {_generic(name): style for name, style in model.tp_plan.items()}
    for name, module in list(model.named_modules()):
        style = plan.get(_generic(name), _WHOLE)
        if type(module) is not nn.Linear or style == _WHOLE:
            continue
        if style not in _STYLES:
            raise ValueError(f"{name} is divided in an unsupported way: {style}")
        cut = _gathering(module, style, ranks, integers) if packed else _summing(module, style, ranks)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, cut)
    text = model.config.get_text_config()
    kv_heads = _kv_heads(text)
    return Shards(ranks, kv_heads // ranks.size if _cuts_heads(plan) else kv_heads)


class GatheredLinear(nn.Module):
    """A product of which this rank computes some outputs. reads: whether what it reads is spread over the
    ranks; outputs: of all ranks together, None where each goes on with its own."""

    def __init__(self, own: nn.Module, ranks: Ranks, reads: bool, outputs: int | None) -> None:
        super().__init__()
        self._own = own
        self._ranks = ranks
        self._reads = reads
        self._outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self._own(self._ranks.gather(x) if self._reads else x))
        return y if self._outputs is None else self._ranks.gather(y)[..., : self._outputs]


class SummedLinear(nn.Module):
    """A product of which this rank reads some inputs. whole: whether it is given all of them."""

    def __init__(self, linear: nn.Linear, ranks: Ranks, whole: bool) -> None:
        super().__init__()
        self._part = _part(linear.in_features, ranks) if whole else slice(None)
        self._ranks = ranks
        self.weight = _kept(linear.weight[:, _part(linear.in_features, ranks)])
        bias = _bias(linear)
        self.bias = None if bias is None else _kept(bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self._ranks.total(F.linear(x[..., self._part], self.weight))
        return y if self.bias is None else y + self.bias


def _gathering(linear: nn.Linear, style: str, ranks: Ranks, integers: bool) -> nn.Module:
    outputs = None if style == _COLWISE else linear.out_features
    weight, bias = _rows_of(linear, ranks)
    return GatheredLinear(PackedLinear(weight, bias, integers), ranks, style == _ROWWISE, outputs)


def _summing(linear: nn.Linear, style: str, ranks: Ranks) -> nn.Module:
    if style in (_ROWWISE, _SPLIT):
        return SummedLinear(linear, ranks, whole=style == _SPLIT)
    weight, bias = _rows_of(linear, ranks)
    own = nn.Linear(linear.in_features, len(weight), bias is not None, device="meta")
    own.weight = _kept(weight)
    if bias is not None:
        own.bias = _kept(bias)
    return GatheredLinear(own, ranks, False, None if style == _COLWISE else linear.out_features)


def _rows_of(linear: nn.Linear, ranks: Ranks) -> tuple[Tensor, Tensor | None]:
    """This rank's outputs, as many on each rank: the last ones are filled up with zeros."""
    share = -(-linear.out_features // ranks.size)
    first = ranks.rank * share

    def part(whole: Tensor) -> Tensor:
        own = whole.detach()[first : first + share]
        return torch.cat([own, own.new_zeros(share - len(own), *own.shape[1:])])

    bias = _bias(linear)
    return part(linear.weight), None if bias is None else part(bias)


def _bias(linear: nn.Linear) -> Tensor | None:
    # torch's own annotation leaves out that there may be none.
    return linear.bias


def _part(count: int, ranks: Ranks) -> slice:
    share = count // ranks.size
    return slice(ranks.rank * share, (ranks.rank + 1) * share)


def _kept(tensor: Tensor) -> nn.Parameter:
    """A parameter of its own, that does not keep the whole one in memory."""
    return nn.Parameter(tensor.detach().clone(), requires_grad=False)


def _generic(name: str) -> str:
    """The name with numbers of layers as plans have them."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _cuts_heads(plan: Mapping[str, str]) -> bool:
    return any(name.endswith(_QUERIES) and style == _COLWISE for name, style in plan.items())


def _kv_heads(text: PreTrainedConfig) -> int:
    heads: int = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return heads
