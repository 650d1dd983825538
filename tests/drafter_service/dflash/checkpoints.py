"""Tiny random drafters in the published layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from cluster.drafting.block_diffusion import DFLASH, DFLASH2, read_config
from drafter_service.drafters.dflash.model import BlockDiffusionModel

HIDDEN, VOCAB, TARGET_LAYERS = 32, 512, 6


def build_drafter(
    folder: Path, *, selects: bool = False, seed: int = 5, dtype=torch.float32, **changes
) -> Path:
    """A drafter for a tiny target of HIDDEN, VOCAB and TARGET_LAYERS; changes: fields of config.json."""
    nested = {"mask_token_id": 7, "target_layer_ids": [1, 2, 4]} | changes.pop("dflash_config", {})
    if selects:
        nested |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 8, "selector_top_k": 16}
    fields = {
        "architectures": [DFLASH2 if selects else DFLASH],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "num_target_layers": TARGET_LAYERS,
        "block_size": 16,
        "dflash_config": nested,
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    torch.manual_seed(seed)
    model = BlockDiffusionModel(read_config(folder))
    tensors = {}
    for name, parameter in model.state_dict().items():
        # Wide enough that rows differ, norms included.
        spread = torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.3)
        published = name.removesuffix(".weight") if "codebook" in name else name
        tensors[published] = ((1 if "norm" in name else 0) + spread).to(dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
