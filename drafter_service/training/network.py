"""What a drafter that is trained says, and its loss, through the frozen embedding and head of its target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafter_service.drafters.dflash.model import BlockDiffusionModel, Context
from drafter_service.training.blocks import Blocks
from drafter_service.training.corpus import Text

# Of the loss: few enough that their logits stay in a cache.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Frozen:
    """Of the target: embedding [V, d]; head: its rows of the ids that are drafted, [Vd, d]; draft_ids: [Vd];
    place: of each id of the vocabulary among them, -1 for none, [V]."""

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor
    place: Tensor


def freeze(target: Any, texts: Sequence[Text], size: int) -> Frozen:
    """size: ids that are drafted, the likeliest over the texts; 0 for all."""
    vocab = len(target.get_output_embeddings().weight)
    if 0 < size < vocab:
        counts: Counter[int] = Counter()
        for text in texts:
            for column in range(2):
                counts.update(text.top_ids[:, column].tolist())
        chosen = sorted(token for token, _ in counts.most_common(size))
        # A tiny corpus knows too few: the rest are the first that are missing.
        missing = (token for token in range(vocab) if token not in counts)
        chosen = sorted([*chosen, *(next(missing) for _ in range(size - len(chosen)))])
        draft_ids = torch.tensor(chosen)
    else:
        draft_ids = torch.arange(vocab)
    return frozen_with(target, draft_ids)


def frozen_with(target: Any, draft_ids: Tensor) -> Frozen:
    """draft_ids: [Vd], ascending or as a checkpoint has them."""
    embedding = target.get_input_embeddings().weight.detach()
    head = target.get_output_embeddings().weight.detach()
    place = torch.full((len(head),), -1)
    place[draft_ids] = torch.arange(len(draft_ids))
    return Frozen(embedding.clone(), head[draft_ids].clone(), draft_ids, place)


def hidden_rows(model: BlockDiffusionModel, frozen: Frozen, blocks: Blocks) -> Tensor:
    """What the network says of each draft: [B, A, g, d]."""
    context = Context(len(model.layers))
    model.extend(context, model.fuse(blocks.features.float()))
    embedded = F.embedding(blocks.ids, frozen.embedding).float() * model.config.embedding_scale
    count = blocks.tokens.shape[1]
    rows: Tensor = model(embedded, blocks.positions, context, count, blocks.seen)
    by_block: Tensor = rows.unflatten(1, (count, -1))
    return by_block[:, :, 1:]


@dataclass(frozen=True, slots=True)
class Losses:
    """rows: of each draft by itself; choice: of the selector's choice, given the draft before."""

    rows: Tensor
    choice: Tensor

    @property
    def both(self) -> Tensor:
        return self.rows + self.choice


def loss(model: BlockDiffusionModel, frozen: Frozen, blocks: Blocks) -> Losses:
    """Cross-entropy against the target's distributions on what can be drafted, weighted by position.

    Its expectation is that of cross-entropy against tokens drawn from them, and it varies less. The selector
    is held to them among its candidates, after the draft that was right before.
    """
    places = frozen.place[blocks.label_ids]
    probs = blocks.label_probs * (places >= 0)
    total = probs.sum(dim=-1)
    weights = blocks.weights * (total > 0)
    weights = weights / weights.sum().clamp_min(1e-9)
    labels = probs / total.clamp_min(1e-9)[..., None]
    rows = hidden_rows(model, frozen, blocks).flatten(0, 2)
    places, labels = places.clamp_min(0).flatten(0, 2), labels.flatten(0, 2)
    selector = model.candidate_selector
    count = min(selector.top_k, len(frozen.head)) if selector is not None else 0
    value, unary, candidates = _HeadCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, frozen.head, places, labels, weights.flatten(), count
    )
    if selector is None:
        return Losses(value, value.new_zeros(()))
    scores = selector.scores(rows, unary, frozen.draft_ids[candidates], blocks.before.flatten())
    # [n, K]: the labels' probabilities, where they stand among the candidates.
    wanted = ((candidates[:, :, None] == places[:, None]) * labels[:, None]).sum(dim=-1)
    choice = -(torch.log_softmax(scores.float(), dim=-1) * wanted).sum(dim=-1)
    return Losses(value, (choice * weights.flatten()).sum())


class _HeadCrossEntropy(torch.autograd.Function):
    """Through a frozen head, some of the rows after others: loss and gradient in one go, so that no logits
    are kept. rows: [n, d]; head: [Vd, d]; places, labels: [n, TOP], rows of the head and their probabilities;
    weights: [n]; kept: logits of a row that are kept, the largest, without gradient. Products are in bfloat16
    under autocast and for a head of that type. Gives the loss, the logits and their places, [n, kept].
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, head: Tensor, places: Tensor, labels: Tensor, weights: Tensor, kept: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if torch.is_autocast_enabled(rows.device.type):
            head = head.to(torch.get_autocast_dtype(rows.device.type))
        value = rows.new_zeros((), dtype=torch.float32)
        wanted = ctx.needs_input_grad[0]
        gradients, logits_kept, places_kept = [], [], []
        with torch.autocast(rows.device.type, enabled=False):
            for some, at, label, weight in zip(
                *(each.split(_ROWS_AT_ONCE) for each in (rows, places, labels, weights)), strict=True
            ):
                logits = F.linear(some.to(head.dtype), head).float()
                largest, where = logits.topk(max(1, kept), dim=-1)
                logits_kept.append(largest[:, :kept])
                places_kept.append(where[:, :kept])
                top = largest[:, :1]
                chosen = ((logits.gather(-1, at) - top) * label).sum(dim=-1)
                over = logits.sub_(top).exp_()
                mass = over.sum(dim=-1)
                value += ((mass.log() - chosen) * weight).sum()
                if wanted:
                    over.mul_((weight / mass)[:, None])
                    over.scatter_add_(-1, at, -label * weight[:, None])
                    gradients.append((over.to(head.dtype) @ head).to(rows.dtype))
        if wanted:
            ctx.save_for_backward(torch.cat(gradients))
        unary, candidates = torch.cat(logits_kept), torch.cat(places_kept)
        ctx.mark_non_differentiable(unary, candidates)
        return value, unary, candidates

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None, None


def greedy_drafts(model: BlockDiffusionModel, frozen: Frozen, blocks: Blocks) -> Tensor:
    """What it drafts at temperature 0 after each anchor: ids, [B, A, g]."""
    rows = hidden_rows(model, frozen, blocks)
    logits = F.linear(rows.to(frozen.head.dtype), frozen.head).float()
    selector = model.candidate_selector
    if selector is None:
        return frozen.draft_ids[logits.argmax(dim=-1)]
    unary, places = logits.topk(min(selector.top_k, logits.shape[-1]), dim=-1)
    candidates = frozen.draft_ids[places]
    drafts, before = [], blocks.before[:, :, 0].flatten()
    for k in range(rows.shape[2]):
        own, alone, ids = (part[:, :, k].flatten(0, 1) for part in (rows, unary, candidates))
        best = selector.scores(own, alone, ids, before).argmax(dim=-1)
        before = ids.gather(-1, best[:, None])[:, 0]
        drafts.append(before.view(rows.shape[:2]))
    return torch.stack(drafts, dim=-1)
