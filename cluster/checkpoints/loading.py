"""Loading a checkpoint's model and tokenizer, and telling whether two processes hold the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from cluster.checkpoints.errors import CheckpointError
from cluster.checkpoints.registry import Checkpoint

if TYPE_CHECKING:
    # Importing it takes seconds, which a drafter without a model need not spend.
    from transformers import PreTrainedConfig, PreTrainedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(checkpoint: Checkpoint, dtype: str, device: str) -> PreTrainedModel:
    """The model in eval mode, without gradients.

    dtype: one of DTYPES; device: as torch names it ("cpu", "cuda:0"). Raises CheckpointError.
    """
    if dtype not in DTYPES:
        raise CheckpointError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    quiet_transformers()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint.path, dtype=DTYPES[dtype], **_revision(checkpoint)
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.reference} cannot be loaded: {error}") from error
    # As a Module: transformers wraps `to` in a way that hides its signature.
    cast(torch.nn.Module, model).to(device).eval().requires_grad_(False)
    return cast("PreTrainedModel", model)


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """What a checkpoint says of its model, without its weights. Raises CheckpointError."""
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, **_revision(checkpoint))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.reference} cannot be loaded: {error}") from error
    return cast("PreTrainedConfig", config)


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The checkpoint's own tokenizer. Raises CheckpointError."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.path, **_revision(checkpoint))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.reference} has no usable tokenizer: {error}") from error
    return cast(PreTrainedTokenizerBase, tokenizer)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256, hex, over what turns text into ids and back; equal in every process with equal tokenizers.

    Covers the vocabulary and, for a fast tokenizer, its whole pipeline; not the chat template, which
    changes what is asked and never what an id means.
    """
    by_id = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    parts: dict[str, Any] = {"vocabulary": by_id}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        pipeline = json.loads(backend.to_str())
        # Padding and truncation are left-overs of the last call, no part of the tokenizer.
        parts["pipeline"] = {k: v for k, v in pipeline.items() if k not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def weights_hash(model: torch.nn.Module) -> str:
    """sha256, hex, over every parameter's name, shape, dtype and all its bytes.

    A hash of hashes, so that parameters are hashed in parallel.
    """
    names, parameters = zip(*sorted(model.named_parameters()), strict=True)
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_parameter_digest, parameters))
    whole = hashlib.sha256()
    for name, parameter, digest in zip(names, parameters, digests, strict=True):
        whole.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}:".encode() + digest)
    return whole.hexdigest()


def end_of_sequence_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that end generation: the generation configuration's, the model's and the tokenizer's."""
    configs = (model.generation_config, model.config, tokenizer)
    return frozenset(i for config in configs for i in _ids(getattr(config, "eos_token_id", None)))


def quiet_transformers() -> None:
    """Turn transformers' progress bars off in this process: they tear up logs and our own progress."""
    transformers_logging.disable_progress_bar()


def _parameter_digest(parameter: torch.Tensor) -> bytes:
    # As bytes: numpy knows no bfloat16.
    flat = parameter.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
    return hashlib.sha256(flat.numpy().data).digest()


def _ids(value: int | Iterable[int] | None) -> Iterable[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value


def _revision(checkpoint: Checkpoint) -> dict[str, str]:
    return {} if checkpoint.is_local else {"revision": checkpoint.revision}
