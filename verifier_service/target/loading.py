"""A spec's weights, and the target made of them: in one process, or in each of those that share it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel

from cluster.checkpoints.adapters import read_adapter
from cluster.checkpoints.loading import load_model
from cluster.checkpoints.registry import Checkpoint, resolve
from cluster.drafting.block_diffusion import Fusing
from cluster.kernels.packed import quantize
from verifier_service.spec import INT8, VerifierSpec
from verifier_service.target.target import TargetModel
from verifier_service.tensor_parallel.ranks import Ranks
from verifier_service.tensor_parallel.sharding import shard


def checkpoint_of(spec: VerifierSpec) -> Checkpoint:
    """Raises CheckpointError."""
    return resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)


def load_weights(spec: VerifierSpec, checkpoint: Checkpoint) -> PreTrainedModel:
    """The whole model, on the spec's device, or in the host's memory where processes are to share it.
    Raises CheckpointError."""
    integers = spec.dtype == INT8
    shared = spec.tensor_parallel_size > 1
    model = load_model(checkpoint, "float32" if integers else spec.dtype, "cpu" if shared else spec.device)
    if integers:
        quantize(model)
    return model


def target_of(
    spec: VerifierSpec,
    model: PreTrainedModel,
    weights_hash: str,
    fusing: Fusing | None = None,
    ranks: Ranks | None = None,
) -> TargetModel:
    """The target, which takes the model over. ranks: of which this process is one. Raises ValueError;
    CheckpointError for an adapter that cannot be read."""
    integers, shards = spec.dtype == INT8, None
    if spec.adapters and ranks is not None:
        raise ValueError("adapters need tensor_parallel_size = 1")
    adapters = [read_adapter(name, Path(folder).expanduser()) for name, folder in spec.adapters]
    if ranks is not None:
        packed = spec.device == "cpu" and model.dtype == torch.float32
        shards = shard(model, ranks, packed, integers)
        # As a Module: transformers wraps `to` in a way that hides its signature.
        cast(torch.nn.Module, model).to(spec.device)
    return TargetModel(model, weights_hash, spec.threads, integers, fusing, shards, adapters)
