"""Block-diffusion drafters as they are published: configuration, tensors, what a verifier needs of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from cluster.checkpoints.errors import CheckpointError
from cluster.drafting.features import FeaturesInfo, default_layer_ids

DFLASH: Final = "DFlashDraftModel"
DFLASH2: Final = "DFlash2DraftModel"
# Ids that a drafter with a reduced vocabulary can draft, a tensor beside its weights.
DRAFT_IDS: Final = "draft_ids"


@dataclass(frozen=True, slots=True)
class BlockDiffusionConfig:
    """A published configuration, read.

    qwen: the layers' shape, as transformers' Qwen3; target_layers: of the target; layer_ids: whose hidden
    states are read, counted from 0 (the output of layer id, transformers' hidden_states[id + 1]);
    selects: DFlash 2, with convolutions and a selector of candidates.
    """

    qwen: Qwen3Config
    block_size: int
    mask_id: int
    target_layers: int
    layer_ids: tuple[int, ...]
    selects: bool = False
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    softcap: float = 0.0
    output_multiplier: float = 1.0
    embedding_scale: float = 1.0

    def sight(self, layer: int) -> tuple[bool, int]:
        """Whether a layer's rows see those before them alone, and how far they see; 0: all."""
        types = self.qwen.layer_types
        slides = types is not None and types[layer] == "sliding_attention"
        causal = getattr(self.qwen, "is_causal", None)
        window = self.qwen.sliding_window if slides else None
        return (slides if causal is None else bool(causal)), window or 0

    @property
    def memory(self) -> int:
        """Positions of context that the layers see at most; 0: all."""
        windows = [self.sight(layer)[1] for layer in range(self.qwen.num_hidden_layers)]
        return max(windows) if all(windows) else 0


def read_config(folder: Path) -> BlockDiffusionConfig:
    """Raises CheckpointError for a folder without a published configuration or with an inconsistent one."""
    try:
        fields: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} has no readable config.json: {error}") from error
    architectures = fields.get("architectures") or []
    if not {DFLASH, DFLASH2} & set(architectures):
        named = ", ".join(architectures) or "nothing"
        raise CheckpointError(f"{folder} is no block-diffusion drafter: its architectures name {named}")
    try:
        return _config(fields, DFLASH2 in architectures)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the configuration in {folder} does not add up: {error}") from error


def _config(fields: dict[str, Any], selects: bool) -> BlockDiffusionConfig:
    nested = fields.get("dflash_config") or {}

    def value(name: str, default: Any = None) -> Any:
        for found in (nested.get(name), fields.get(name), default):
            if found is not None:
                return found
        raise KeyError(f"no {name}")

    qwen = Qwen3Config.from_dict(fields)
    layers = int(value("num_target_layers"))
    ids = value("target_layer_ids", default_layer_ids(layers, qwen.num_hidden_layers))
    layer_ids = tuple(int(layer) for layer in ids)
    if not layer_ids or min(layer_ids) < 0 or max(layer_ids) >= layers:
        raise ValueError(f"target_layer_ids {list(layer_ids)} of a target with {layers} layers")
    if list(layer_ids) != sorted(set(layer_ids)):
        raise ValueError(f"target_layer_ids {list(layer_ids)} do not ascend")
    block = int(value("block_size", 16))
    if block < 2:
        raise ValueError(f"block_size {block} leaves no draft")
    return BlockDiffusionConfig(
        qwen=qwen,
        block_size=block,
        mask_id=int(value("mask_token_id")),
        target_layers=layers,
        layer_ids=layer_ids,
        selects=selects,
        conv_kernel_size=int(value("conv_kernel_size")) if selects else 0,
        conv_group_size=int(value("conv_group_size")) if selects else 0,
        selector_rank=int(value("selector_rank")) if selects else 0,
        selector_top_k=int(value("selector_top_k")) if selects else 0,
        softcap=float(value("final_logit_softcapping", 0.0)),
        output_multiplier=float(value("output_multiplier", 1.0)),
        embedding_scale=float(value("input_embedding_scale", 1.0)),
    )


def read_tensors(folder: Path, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The checkpoint's tensors, or those of them that begin with one of `names`. Raises CheckpointError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no safetensors")
    found: dict[str, Tensor] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    if not names or name.startswith(names):
                        found[name] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return found


class Projection(nn.Module):
    """What a verifier computes for its drafter: fused = RMSNorm(fc(features)), once for every token.

    digest: sha256, hex, over both weights; a drafter and its verifier compare theirs.
    """

    def __init__(self, fc: Tensor, norm: Tensor, eps: float) -> None:
        super().__init__()
        self.fc, self.norm = nn.Buffer(fc), nn.Buffer(norm)
        self.eps = eps
        whole = hashlib.sha256()
        for tensor in (fc, norm):
            whole.update(f"{tuple(tensor.shape)}:{tensor.dtype}".encode())
            whole.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
        self.digest = whole.hexdigest()

    def forward(self, features: Tensor) -> Tensor:
        """[..., m·d] -> [..., d]."""
        rows = nn.functional.linear(features, self.fc)
        wide = rows.float()
        # Rounded as in the layers that the weights were trained with: before the weight, and after.
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(rows.dtype)
        return self.norm * normed


def read_projection(folder: Path, config: BlockDiffusionConfig) -> Projection:
    """Raises CheckpointError for weights that are missing or of other shapes."""
    tensors = read_tensors(folder, ("fc.", "hidden_norm."))
    hidden = config.qwen.hidden_size
    expected = {"fc.weight": (hidden, len(config.layer_ids) * hidden), "hidden_norm.weight": (hidden,)}
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{folder} lacks {name}")
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(f"{name} in {folder} is {list(tensors[name].shape)}, not {list(shape)}")
    return Projection(tensors["fc.weight"], tensors["hidden_norm.weight"], config.qwen.rms_norm_eps)


@dataclass(frozen=True, slots=True, eq=False)
class Fusing:
    """What a verifier makes for its drafter. info: as it is told to the drafter; target_layers: of the target
    that the drafter was made for."""

    info: FeaturesInfo
    projection: Projection
    target_layers: int


def read_fusing(folder: Path, dtype: str) -> Fusing:
    """dtype: of the features on the wire. Raises CheckpointError."""
    config = read_config(folder)
    projection = read_projection(folder, config)
    info = FeaturesInfo(config.layer_ids, projection.digest, dtype, config.qwen.hidden_size)
    return Fusing(info, projection, config.target_layers)
