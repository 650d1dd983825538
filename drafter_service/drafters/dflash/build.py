"""A block-diffusion drafter from references: its own checkpoint, and what it borrows of its target's."""

from __future__ import annotations

from pathlib import Path

from cluster.checkpoints import Checkpoint, CheckpointError, load_tokenizer, tokenizer_hash
from cluster.drafting.block_diffusion import read_projection
from cluster.drafting.drafter_checkpoints import resolve_drafter
from cluster.drafting.features import FeaturesInfo
from drafter_service.drafters.dflash.drafter import BlockDiffusionDrafter
from drafter_service.drafters.dflash.loading import borrow, load_network


def load_drafter(
    reference: str, target: Checkpoint, tokenizer: str, vocab_size: int, dtype: str, device: str
) -> BlockDiffusionDrafter:
    """tokenizer, vocab_size: hash and ids of the target's tokenizer; dtype: of weights and features.

    Raises CheckpointError for a checkpoint that is missing, corrupt, or not for this target.
    """
    checkpoint = resolve_drafter(reference)
    folder = Path(checkpoint.path)
    network, draft_ids = load_network(folder, dtype, device)
    config = network.config
    # Most are published without one, and are then held to widths, depth and vocabulary alone.
    if (folder / "tokenizer.json").is_file():
        own = tokenizer_hash(load_tokenizer(checkpoint))
        if own != tokenizer:
            raise CheckpointError(f"the tokenizer of {reference} is {own}, that of its target {tokenizer}")
    borrowed, context = borrow(target, config, draft_ids, dtype, device)
    context = min(context, int(config.qwen.max_position_embeddings))
    width = config.qwen.hidden_size
    features = FeaturesInfo(config.layer_ids, read_projection(folder, config).digest, dtype, width)
    return BlockDiffusionDrafter(
        network, borrowed, checkpoint.reference, checkpoint.revision, features, context, vocab_size
    )
