"""LoRA adapters (Hu et al., arXiv 2106.09685) as PEFT writes them: a folder with adapter_config.json and
adapter_model.safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from cluster.checkpoints.errors import CheckpointError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
# What changes an adapter's meaning and is not implemented, with the value that means "not used".
_UNUSED: Mapping[str, Any] = {
    "use_dora": False,
    "bias": "none",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "fan_in_fan_out": False,
    "lora_bias": False,
}


@dataclass(frozen=True, slots=True)
class LoraPart:
    """Adds up(down(x)) to a linear layer. down: [r, in]; up: [out, r], scaled."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """parts: by the name of the linear layer; digest: sha256 over both files, hex."""

    name: str
    digest: str
    parts: Mapping[str, LoraPart]


def read_adapter(name: str, folder: Path) -> Adapter:
    """Raises CheckpointError for a folder that holds none, or one of more than pairs of matrices."""
    try:
        files = [(folder / file).read_bytes() for file in (_CONFIG, _WEIGHTS)]
        config, weights = json.loads(files[0]), load(files[1])
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is no LoRA adapter: {error}") from error
    _check(folder, config)
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    downs = {key.removesuffix(_DOWN): tensor for key, tensor in weights.items() if key.endswith(_DOWN)}
    ups = {key.removesuffix(_UP): tensor for key, tensor in weights.items() if key.endswith(_UP)}
    if not downs or downs.keys() != ups.keys() or len(downs) + len(ups) != len(weights):
        raise CheckpointError(f"{folder} has weights other than pairs of lora_A and lora_B")
    parts = {
        key.removeprefix(_PREFIX): LoraPart(down.float(), ups[key].float() * scale)
        for key, down in downs.items()
    }
    return Adapter(name, hashlib.sha256(b"".join(map(_digest, files))).hexdigest(), parts)


def _check(folder: Path, config: Any) -> None:
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder} is no LoRA adapter: its peft_type is not LORA")
    for field in ("r", "lora_alpha"):
        if not isinstance(config.get(field), int | float) or config[field] <= 0:
            raise CheckpointError(f"{folder} is no LoRA adapter: {field} must be a positive number")
    for field, unused in _UNUSED.items():
        if (value := config.get(field)) not in (unused, None):
            raise CheckpointError(f"{folder}: an adapter with {field} = {value!r} is not supported")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
