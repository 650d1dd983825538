"""The target's answers to many prompts at once, with the features that a drafter will read.

What a decoding step computes anyway is kept: hidden states of some layers and the likeliest tokens. So no
text has to be run through the target a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from cluster.drafting.features import LayerTaps

NAME = "truedraft_columns"
# Of the target's distribution after every token, so many entries are kept.
TOP = 16
# The batch is made smaller when so large a share of it has ended.
_SHRINK = 0.3


@dataclass(frozen=True, slots=True)
class Answered:
    """tokens: int32 [n], prompt and answer; prompt: how many are the prompt's; features: float16 [n-1, m·d],
    of all but the last token; top_ids, top_probs: int32 and float16 [n - prompt, TOP], what the target's
    distribution at temperature 1 has most of where each token of the answer was drawn.
    """

    tokens: Tensor
    prompt: int
    temperature: float
    features: Tensor
    top_ids: Tensor
    top_probs: Tensor


@dataclass(frozen=True, slots=True)
class _Growing:
    """An answer so far, as in Answered."""

    tokens: list[int]
    features: list[Tensor]
    top_ids: list[Tensor]
    top_probs: list[Tensor]


class _Columns:
    """Keys and values of a batch, one column a step; sequences are aligned at their prompts' ends.

    begin: the first column of each sequence, [B].
    """

    def __init__(self, begin: Tensor, columns: int) -> None:
        self.begin, self.columns, self.filled = begin, columns, 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._seen: tuple[tuple[int, int, int | None], Tensor] | None = None

    def seen(self, rows: int, window: int | None) -> Tensor:
        """Which columns the next `rows` rows attend to, bool [B, rows, columns]; the same for every layer
        with the same window, and computed once a step."""
        key = (self.filled, rows, window)
        if self._seen is None or self._seen[0] != key:
            held = torch.arange(self.filled + rows, device=self.begin.device)
            at = held[self.filled :]
            mask = (held <= at[:, None])[None] & (held >= self.begin[:, None, None])
            if window:
                mask = mask & (held > at[:, None] - window)[None]
            # A row before its sequence's begin sees itself, so that it is finite.
            self._seen = key, mask | (held == at[:, None])[None]
        return self._seen[1]

    def keep(self, alive: Tensor) -> None:
        self.begin = self.begin[alive]
        for held in (self.keys, self.values):
            for layer, tensor in held.items():
                held[layer] = tensor[alive]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    columns: _Columns | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: query [B, heads, n, dim], key and value [B, kv_heads, n, dim]."""
    if columns is None:
        raise ValueError("this attention needs its columns")
    layer: Any = module.layer_idx
    count, (batch, kv_heads, rows, dim) = columns.filled, key.shape
    if layer not in columns.keys:
        shape = (batch, kv_heads, columns.columns, dim)
        columns.keys[layer], columns.values[layer] = key.new_zeros(shape), key.new_zeros(shape)
    keys, values = columns.keys[layer], columns.values[layer]
    keys[:, :, count : count + rows], values[:, :, count : count + rows] = key, value
    window = kwargs.get("sliding_window", getattr(module, "sliding_window", None))
    seen = columns.seen(rows, window)
    heads = query.shape[1]
    grouped = query.reshape(batch, kv_heads, -1, dim)
    mask = seen[:, None].repeat(1, 1, heads // kv_heads, 1)
    out = F.scaled_dot_product_attention(
        grouped, keys[:, :, : count + rows], values[:, :, : count + rows], attn_mask=mask, scale=scaling
    )
    return out.reshape(batch, heads, rows, dim).transpose(1, 2), None


def prepare(model: Any) -> None:
    """Gives a target the attention of `answer`, which needs no mask, and a head that reads rows in place."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(NAME)
    # Of a prompt's rows the head gets the last, a view; for a view of this form, torch copies the head's
    # weight for every sequence.
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))


@torch.inference_mode()
def answer(
    model: Any,
    taps: LayerTaps,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    most: int,
    ends: frozenset[int],
    generator: torch.Generator,
) -> list[Answered]:
    """Answers of at most `most` tokens each, an end of sequence included; in the prompts' order.

    model: prepared; taps: on its layers; ends: ids after which an answer is over.
    """
    device = model.device
    longest = max(len(prompt) for prompt in prompts)
    begin = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    columns = _Columns(begin, longest + most)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
    heat = torch.tensor(temperatures, device=device)
    stop = torch.tensor(sorted(ends), device=device)
    found = [_Growing([], [], [], []) for _ in prompts]
    owners, alive = list(range(len(prompts))), [True] * len(prompts)
    for step in range(most):
        rows = ids.shape[1]
        positions = columns.filled + torch.arange(rows, device=device)[None] - columns.begin[:, None]
        # A row before its sequence's begin counts for nothing, but must have a place.
        output = model(
            input_ids=ids,
            position_ids=positions.clamp_min(0),
            use_cache=False,
            logits_to_keep=1,
            columns=columns,
        )
        columns.filled += rows
        features = taps.take().to(torch.float16)
        probs, top_ids, drawn = _decide(output.logits[:, -1].float(), heat, generator)
        ended = torch.isin(drawn, stop).tolist()
        for row, owner in enumerate(owners):
            if alive[row]:
                first = int(columns.begin[row]) if step == 0 else 0
                # Copies: a view would keep the whole batch.
                found[owner].features.append(features[row, first:].clone())
                found[owner].tokens.append(int(drawn[row]))
                found[owner].top_ids.append(top_ids[row].int())
                found[owner].top_probs.append(probs[row].to(torch.float16))
                alive[row] = not ended[row]
        if not any(alive):
            break
        ids = drawn[:, None]
        if sum(alive) < (1 - _SHRINK) * len(alive):
            left = torch.tensor([row for row, goes_on in enumerate(alive) if goes_on], device=device)
            columns.keep(left)
            ids, heat = ids[left], heat[left]
            owners = [owner for owner, goes_on in zip(owners, alive, strict=True) if goes_on]
            alive = [True] * len(owners)
    return [
        Answered(
            tokens=torch.tensor([*prompt, *own.tokens], dtype=torch.int32),
            prompt=len(prompt),
            temperature=temperature,
            features=torch.cat(own.features).cpu(),
            top_ids=torch.stack(own.top_ids).cpu(),
            top_probs=torch.stack(own.top_probs).cpu(),
        )
        for own, prompt, temperature in zip(found, prompts, temperatures, strict=True)
    ]


def _decide(logits: Tensor, heat: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest tokens' probabilities and ids, [B, TOP], and a token drawn from each row, [B]."""
    top, top_ids = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
    probs = (top - logits.logsumexp(dim=-1, keepdim=True)).exp()
    drawn = top_ids[:, 0].clone()
    warm = (heat > 0).nonzero()[:, 0]
    if len(warm):
        # By the inverse distribution function: a number a row, where torch.multinomial draws one a token.
        upto = torch.softmax(logits[warm] / heat[warm, None], dim=-1).cumsum(dim=-1)
        at = torch.rand(len(warm), 1, generator=generator, device=logits.device) * upto[:, -1:]
        drawn[warm] = torch.searchsorted(upto, at, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    return probs, top_ids, drawn
