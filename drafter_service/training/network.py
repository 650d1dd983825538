"""The drafter that is trained: its configuration, its first weights, its frozen embedding and head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cluster.drafting.block_diffusion import DFLASH, BlockDiffusionConfig
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
    embedding = target.get_input_embeddings().weight.detach()
    head = target.get_output_embeddings().weight.detach()
    vocab = len(head)
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
    place = torch.full((vocab,), -1)
    place[draft_ids] = torch.arange(len(draft_ids))
    return Frozen(embedding.clone(), head[draft_ids].clone(), draft_ids, place)


def published_config(
    target: Any, layer_ids: Sequence[int], layers: int, block: int, mask_id: int
) -> dict[str, Any]:
    """The fields of config.json, in the published layout, for a drafter of the target's width."""
    text = target.config.get_text_config()
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0}
    return {
        "architectures": [DFLASH],
        "model_type": "qwen3",
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": getattr(text, "rms_norm_eps", 1e-6),
        "attention_bias": False,
        "max_position_embeddings": text.max_position_embeddings,
        "rope_parameters": dict(rope),
        "vocab_size": text.vocab_size,
        "num_target_layers": text.num_hidden_layers,
        "block_size": block,
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": list(layer_ids)},
    }


def begin(config: BlockDiffusionConfig, target: Any, seed: int) -> BlockDiffusionModel:
    """First weights: where the target's layers have the drafter's shape, its last ones, reading the features
    of the last layer that is read; else random ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BlockDiffusionModel(config)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
    hidden = config.qwen.hidden_size
    with torch.no_grad():
        model.fc.weight[:, -hidden:] += torch.eye(hidden)
        decoder = target.get_decoder()
        own = decoder.layers[-len(model.layers) :]
        for layer, theirs in zip(model.layers, own, strict=False):
            weights = theirs.state_dict()
            for name, parameter in layer.named_parameters():
                if name in weights and weights[name].shape == parameter.shape:
                    parameter.copy_(weights[name])
        if decoder.norm.weight.shape == model.norm.weight.shape:
            model.norm.weight.copy_(decoder.norm.weight)
            model.hidden_norm.weight.copy_(own[0].input_layernorm.weight)
    return model


def hidden_rows(model: BlockDiffusionModel, frozen: Frozen, blocks: Blocks) -> Tensor:
    """What the network says of each draft: [B, A, g, d]."""
    context = Context(len(model.layers))
    model.extend(context, model.fuse(blocks.features.float()))
    embedded = F.embedding(blocks.ids, frozen.embedding).float() * model.config.embedding_scale
    count = blocks.tokens.shape[1]
    rows: Tensor = model(embedded, blocks.positions, context, count, blocks.seen)
    by_block: Tensor = rows.unflatten(1, (count, -1))
    return by_block[:, :, 1:]


def loss(model: BlockDiffusionModel, frozen: Frozen, blocks: Blocks) -> Tensor:
    """Cross-entropy against the target's distributions on what can be drafted, weighted by position.

    Its expectation is that of cross-entropy against tokens drawn from them, and it varies less.
    """
    places = frozen.place[blocks.label_ids]
    probs = blocks.label_probs * (places >= 0)
    total = probs.sum(dim=-1)
    weights = blocks.weights * (total > 0)
    weights = weights / weights.sum().clamp_min(1e-9)
    labels = probs / total.clamp_min(1e-9)[..., None]
    rows = hidden_rows(model, frozen, blocks).flatten(0, 2)
    places, labels = places.clamp_min(0).flatten(0, 2), labels.flatten(0, 2)
    value: Tensor = _HeadCrossEntropy.apply(rows, frozen.head, places, labels, weights.flatten())  # type: ignore[no-untyped-call]
    return value


class _HeadCrossEntropy(torch.autograd.Function):
    """Through a frozen head, some of the rows after others: loss and gradient in one go, so that no logits
    are kept. rows: [n, d]; head: [Vd, d]; places, labels: [n, TOP], rows of the head and their probabilities;
    weights: [n]. Products are in bfloat16 under autocast and for a head of that type.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, head: Tensor, places: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        if torch.is_autocast_enabled(rows.device.type):
            head = head.to(torch.get_autocast_dtype(rows.device.type))
        value = rows.new_zeros((), dtype=torch.float32)
        wanted = ctx.needs_input_grad[0]
        gradients = []
        with torch.autocast(rows.device.type, enabled=False):
            for some, at, label, weight in zip(
                *(each.split(_ROWS_AT_ONCE) for each in (rows, places, labels, weights)), strict=True
            ):
                logits = F.linear(some.to(head.dtype), head).float()
                top = logits.max(dim=-1, keepdim=True).values
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
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None
