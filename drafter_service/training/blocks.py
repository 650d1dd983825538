"""Training examples: texts side by side, in each of them blocks at random anchors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafter_service.training.corpus import Text


@dataclass(frozen=True, slots=True)
class Blocks:
    """B texts of at most L rows of context, A blocks in each, g drafts in a block.

    features: [B, L, m·d]; ids: of block rows, anchor and masks, [B, A·(g+1)]; positions: theirs, alike;
    seen: bool [B, A·(g+1), L + A·(g+1)]; label_ids, label_probs: the target's distributions, [B, A, g, TOP];
    before, tokens: what each draft follows, and what followed that, [B, A, g]; weights: of the drafts'
    losses, 0 after a text's end, [B, A, g].
    """

    features: Tensor
    ids: Tensor
    positions: Tensor
    seen: Tensor
    label_ids: Tensor
    label_probs: Tensor
    before: Tensor
    tokens: Tensor
    weights: Tensor


def decay(drafts: int) -> float:
    """The γ of the loss's weights e^{-(k-1)/γ} (DFlash, arXiv 2602.06036): 7 for 15 drafts, 4 for 7."""
    return 4.0 + 3.0 * (drafts - 7) / 8.0 if drafts >= 7 else max(1.0, 4.0 * drafts / 7.0)


def anchors_of(text: Text) -> range:
    """Where a round can begin: at every emitted token but the last."""
    return range(text.prompt, len(text.tokens) - 1)


def blocks_at(
    texts: Sequence[Text], anchors: Sequence[Sequence[int]], size: int, mask_id: int, device: str = "cpu"
) -> Blocks:
    """texts: with as many anchors each; size: rows of a block, the anchor's included.

    A block's rows see the features before its anchor, whose own do not exist yet, and one another.
    """
    drafts, count = size - 1, len(anchors[0])
    longest = max(len(text.features) for text in texts)
    width = texts[0].top_ids.shape[1]
    features = texts[0].features.new_zeros(len(texts), longest, texts[0].features.shape[1])
    label_ids = torch.zeros(len(texts), count, drafts, width, dtype=torch.long)
    label_probs = torch.zeros(len(texts), count, drafts, width)
    before, tokens = torch.zeros(2, len(texts), count, drafts, dtype=torch.long)
    weights = torch.zeros(len(texts), count, drafts)
    ids = torch.full((len(texts), count, size), mask_id)
    gamma = decay(drafts)
    fading = torch.tensor([math.exp(-k / gamma) for k in range(drafts)])
    starts = torch.tensor([list(own) for own in anchors])
    for row, (text, own) in enumerate(zip(texts, starts, strict=True)):
        features[row, : len(text.features)] = text.features
        ids[row, :, 0] = text.tokens[own].long()
        at = own[:, None] + 1 + torch.arange(drafts)[None]
        inside = at < len(text.tokens)
        at = at.clamp_max(len(text.tokens) - 1)
        before[row], tokens[row] = text.tokens[at - 1].long(), text.tokens[at].long()
        label_ids[row] = text.top_ids[at - text.prompt].long()
        label_probs[row] = text.top_probs[at - text.prompt].float()
        weights[row] = inside * fading
    block_of = torch.arange(count * size) // size
    own_block = (block_of[:, None] == block_of[None])[None].expand(len(texts), -1, -1)
    earlier = torch.arange(longest)[None, None] < starts.repeat_interleave(size, dim=1)[:, :, None]
    positions = (starts[:, :, None] + torch.arange(size)).flatten(1)
    made = (
        features,
        ids.flatten(1),
        positions,
        torch.cat([earlier, own_block], dim=2),
        label_ids,
        label_probs,
        before,
        tokens,
        weights,
    )
    return Blocks(*(tensor.to(device) for tensor in made))
