"""A drafter before its training: its configuration and its first weights, new ones or those of another."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cluster.drafting.block_diffusion import DFLASH2, BlockDiffusionConfig
from drafter_service.drafters.dflash.loading import load_network
from drafter_service.drafters.dflash.model import BlockDiffusionModel, CandidateSelector, Convolution
from drafter_service.training.network import Frozen

# What a DFlash 2 drafter adds, its fields of config.json.
SELECTING = {"conv_kernel_size": 2, "conv_group_size": 64, "selector_rank": 64, "selector_top_k": 16}
# Pairs of tokens that a selector knows from the start: as many ids, before and after.
_PAIRED = 8192


def published_config(
    target: Any, layer_ids: Sequence[int], layers: int, block: int, mask_id: int
) -> dict[str, Any]:
    """The fields of config.json, in the published layout, for a drafter of the target's width."""
    text = target.config.get_text_config()
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10000.0}
    return {
        "architectures": [DFLASH2],
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
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": list(layer_ids), **selecting(text)},
    }


def selecting(text: Any) -> dict[str, int]:
    """SELECTING, with a group of convolution channels that divides the target's width."""
    return SELECTING | {"conv_group_size": math.gcd(SELECTING["conv_group_size"], text.hidden_size)}


def begin(config: BlockDiffusionConfig, target: Any, seed: int) -> BlockDiffusionModel:
    """First weights: where the target's layers have the drafter's shape, its last ones, reading the features
    of the last layer that is read; else random ones. Convolutions and selector change nothing at first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BlockDiffusionModel(config)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        for module in model.modules():
            if isinstance(module, Convolution):
                nn.init.ones_(module.base_kernel[:, 0])
                nn.init.zeros_(module.kernel_projection.weight)
            elif isinstance(module, CandidateSelector):
                nn.init.zeros_(module.hidden_projection.weight)
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


@torch.no_grad()
def pair(model: BlockDiffusionModel, frozen: Frozen, target: Any) -> None:
    """Codebooks of the selector to begin with: what the target thinks likelier after a token than after
    others, of the first ids that are drafted, factorised."""
    selector = model.candidate_selector
    assert selector is not None
    ids = frozen.draft_ids[:_PAIRED]
    rows = []
    for some in ids.split(256):
        # The mask's id stands for the text before, so that no token is the first.
        pairs = torch.stack([torch.full_like(some, model.config.mask_id), some], dim=1)
        hidden = target.get_decoder()(input_ids=pairs.to(target.device), use_cache=False).last_hidden_state
        logits = target.get_output_embeddings()(hidden[:, -1])
        rows.append(torch.log_softmax(logits.float(), dim=-1).cpu()[:, ids])
    likelier = torch.cat(rows)
    likelier = likelier.sub_(likelier.exp().mean(dim=0).clamp_min(1e-9).log()).clamp_min_(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rank = min(selector.successor_codebook.embedding_dim, len(ids))
        left, strength, right = torch.svd_lowrank(likelier, q=rank)
    for codebook, side in ((selector.predecessor_codebook, left), (selector.successor_codebook, right)):
        codebook.weight.zero_()
        codebook.weight[ids, :rank] = side * strength.sqrt()


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Another drafter of the same target to go on from; draft_ids: None for all."""

    network: BlockDiffusionModel
    draft_ids: Tensor | None
    fields: dict[str, Any]


def read_start(folder: Path, target: Any) -> Start:
    """Raises CheckpointError for a folder without a drafter, ValueError for another target's."""
    network, draft_ids = load_network(folder, "float32", "cpu")
    text = target.config.get_text_config()
    own = network.config
    made_for = (own.target_layers, own.qwen.hidden_size, own.qwen.vocab_size)
    if made_for != (text.num_hidden_layers, text.hidden_size, text.vocab_size):
        raise ValueError(f"{folder} was made for a target of another depth, width or vocabulary")
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not own.selects:
        # It gets what DFlash 2 has more, which changes nothing at first.
        fields["architectures"] = [DFLASH2]
        fields["dflash_config"] = (fields.get("dflash_config") or {}) | selecting(text)
    return Start(network, draft_ids, fields)


def go_on(model: BlockDiffusionModel, start: Start) -> None:
    """Gives a new network the weights that another one has."""
    model.load_state_dict(model.state_dict() | start.network.state_dict())
