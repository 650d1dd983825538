"""From a published checkpoint and its target's to a network, an embedding and an output head."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cluster.checkpoints import Checkpoint, CheckpointError
from cluster.checkpoints.loading import DTYPES
from cluster.drafting.block_diffusion import DRAFT_IDS, BlockDiffusionConfig, read_config, read_tensors
from cluster.drafting.drafter_checkpoints import on_hub
from drafter_service.drafters.dflash.model import BlockDiffusionModel

# Published without the name that a module of ours gives them.
_CODEBOOKS = {
    f"candidate_selector.{name}_codebook.weight": f"candidate_selector.{name}_codebook"
    for name in ("predecessor", "successor")
}
_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
_HEADS = ("lm_head.weight",)


@dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    """Of the target: embedding [V, d]; head [Vd, d], its rows of `draft_ids`, [Vd], None for all ids."""

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor | None


def load_network(folder: Path, dtype: str, device: str) -> tuple[BlockDiffusionModel, Tensor | None]:
    """A published checkpoint's network in eval mode, and the ids that it can draft, None for all.

    Raises CheckpointError for a checkpoint that is missing, corrupt, or not what its configuration says.
    """
    config = read_config(folder)
    tensors = read_tensors(folder)
    draft_ids = tensors.pop(DRAFT_IDS, None)
    for name, published in _CODEBOOKS.items():
        if published in tensors:
            tensors[name] = tensors.pop(published)
    with torch.device("meta"):
        model = BlockDiffusionModel(config)
    wanted = model.state_dict()
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise CheckpointError(f"{folder} lacks {missing[0]} and {len(missing) - 1} more tensors")
    if surplus := sorted(tensors.keys() - wanted.keys()):
        raise CheckpointError(f"{folder} has a tensor that no such drafter has: {surplus[0]}")
    for name, tensor in wanted.items():
        if tensors[name].shape != tensor.shape:
            found, needed = list(tensors[name].shape), list(tensor.shape)
            raise CheckpointError(f"{name} in {folder} is {found}, its configuration says {needed}")
        if not bool(tensors[name].isfinite().all()):
            raise CheckpointError(f"{name} in {folder} has numbers that are not finite")
    cast = {name: tensors[name].to(device, DTYPES[dtype]) for name in wanted}
    model.load_state_dict(cast, assign=True)
    model.build_rotary(device)
    model.eval().requires_grad_(False)
    return model, _checked_ids(draft_ids, config, folder)


def published_name(name: str) -> str:
    """Of a tensor of ours, as checkpoints have it."""
    return _CODEBOOKS.get(name, name)


def _checked_ids(draft_ids: Tensor | None, config: BlockDiffusionConfig, folder: Path) -> Tensor | None:
    if draft_ids is None:
        return None
    ids = draft_ids.long()
    inside = ids.ndim == 1 and len(ids) and int(ids.min()) >= 0 and int(ids.max()) < config.qwen.vocab_size
    if not inside or len(ids.unique()) < len(ids):
        raise CheckpointError(
            f"{DRAFT_IDS} in {folder} are no ids of a vocabulary of {config.qwen.vocab_size}"
        )
    return ids


def borrow(
    target: Checkpoint, config: BlockDiffusionConfig, draft_ids: Tensor | None, dtype: str, device: str
) -> tuple[Borrowed, int]:
    """Reads the target's embedding and output head, and nothing else of its weights; positions that it sees.

    Raises CheckpointError for a target without them or of another width, depth or vocabulary.
    """
    folder = Path(target.path)
    if not target.is_local:
        folder = Path(on_hub(f"{target.path}@{target.revision}").path)
    fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = fields.get("text_config") or fields
    depth = text.get("num_hidden_layers")
    if depth != config.target_layers:
        raise CheckpointError(
            f"the drafter was made for a target of {config.target_layers} layers, "
            f"{target.reference} has {depth}"
        )
    embedding = _tensor(folder, _EMBEDDINGS)
    head = embedding if _is_tied(fields, text) else _tensor(folder, _HEADS)
    if embedding is None or head is None:
        raise CheckpointError(f"{target.reference} has no embedding and output head that are known here")
    expected = (config.qwen.vocab_size, config.qwen.hidden_size)
    for name, tensor in (("embedding", embedding), ("output head", head)):
        if tuple(tensor.shape) != expected:
            raise CheckpointError(
                f"the {name} of {target.reference} is {list(tensor.shape)}, "
                f"the drafter needs {list(expected)}"
            )
    if config.mask_id >= expected[0]:
        raise CheckpointError(
            f"the drafter's mask id {config.mask_id} is outside a vocabulary of {expected[0]}"
        )
    chosen = head if draft_ids is None else head[draft_ids]
    kind = DTYPES[dtype]
    borrowed = Borrowed(embedding.to(device, kind), chosen.to(device, kind), draft_ids)
    return borrowed, int(text["max_position_embeddings"])


def _is_tied(fields: dict[str, Any], text: dict[str, Any]) -> bool:
    tied = fields.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    # Where a configuration is silent, transformers takes them for one.
    return True if tied is None else bool(tied)


def _tensor(folder: Path, names: tuple[str, ...]) -> Tensor | None:
    """The first of `names` that some file of the checkpoint has. Raises CheckpointError."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in set(names) & set(file.keys()):
                    tensor: Tensor = file.get_tensor(name)
                    return tensor
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return None
