"""The drafter as a Serve deployment: it carries no requests, only a replica's life and its address."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from ray import serve

from cluster.checkpoints import load_model, load_tokenizer, resolve, tokenizer_hash
from cluster.drafting import Drafter, NgramDrafter
from cluster.kernels.packed import pack
from cluster.passing_thread import in_passing_thread
from cluster.telemetry.logs import log_as_json
from cluster.telemetry.setup import setup, shutdown
from drafter_service.drafters.causal_lm import CausalLmDrafter
from drafter_service.drafters.dflash.build import load_drafter
from drafter_service.scaling import BLOCKS
from drafter_service.server import DraftingServer
from drafter_service.spec import DrafterKind, DrafterSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A drafter with the tokenizer it shares with its target; vocab_size: ids of that tokenizer."""

    drafter: Drafter
    tokenizer_hash: str
    vocab_size: int


def load(spec: DrafterSpec) -> Loaded:
    """Builds the drafter. Raises CheckpointError; ValueError for a draft model with another tokenizer."""
    if spec.threads:
        torch.set_num_threads(spec.threads)
    cache_dir = Path(spec.cache_dir) if spec.cache_dir else None
    tokenizer = load_tokenizer(resolve(spec.target, cache_dir))
    shared, vocab_size = tokenizer_hash(tokenizer), len(tokenizer)
    if spec.kind == DrafterKind.NGRAM:
        return Loaded(NgramDrafter(), shared, vocab_size)
    if spec.kind == DrafterKind.DFLASH:
        target = resolve(spec.target, cache_dir)
        block = load_drafter(spec.model, target, shared, vocab_size, spec.dtype, spec.device)
        return Loaded(block, shared, vocab_size)
    checkpoint = resolve(spec.model, cache_dir)
    own = tokenizer_hash(load_tokenizer(checkpoint))
    if own != shared:
        raise ValueError(f"the tokenizer of {spec.model} is {own}, that of its target {spec.target} {shared}")
    model = load_model(checkpoint, spec.dtype, spec.device)
    if spec.device == "cpu" and spec.dtype == "float32":
        # A block has too few rows for torch's products.
        pack(model)
    context = int(model.config.get_text_config().max_position_embeddings)
    drafter = CausalLmDrafter(model, checkpoint.reference, checkpoint.revision, context, vocab_size)
    return Loaded(drafter, shared, vocab_size)


@serve.deployment
class DrafterDeployment:
    """One replica: a drafter behind a gRPC server of its own. Verifiers ask every replica where that is."""

    async def __init__(self, spec: DrafterSpec) -> None:  # type: ignore[misc] # as Serve wants it
        self._spec = spec
        self._replica = serve.get_replica_context().replica_tag
        log_as_json("truedraft-drafter", self._replica)
        loaded = await in_passing_thread(load, spec)
        self._model = loaded.drafter.model
        self._server = DraftingServer(
            loaded.drafter,
            loaded.tokenizer_hash,
            loaded.vocab_size,
            self._replica,
            setup("truedraft-drafter", replica=self._replica),
            spec.channel,
        )
        # gRPC's asyncio server belongs to the loop that starts it: this one, the user code's.
        host = spec.host or ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        await self._server.start(host, spec.ports)
        _log.info("drafting with %s on %s", self._model, self._server.address)

    async def whereabouts(self) -> dict[str, str | int]:
        """Where to draft, and how many sequences do: for verifiers, every few seconds."""
        return {
            "address": self._server.address,
            "replica": self._replica,
            "sessions": self._server.sessions,
        }

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Asked by Serve, for `scaling.by_wanted_blocks`."""
        return {BLOCKS: self._server.load.average()}

    async def info(self) -> dict[str, object]:
        """Where this replica was placed, what it holds and what is wanted of it."""
        return {
            **await self.whereabouts(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "kind": self._spec.kind,
            "model": self._model,
            "labels": dict(ray.get_runtime_context().get_node_labels()),
            "wanted": self._server.load.wanted,
            "tasks": len(asyncio.all_tasks()),
        }

    def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError when the replica has to be replaced."""
        if not self._server.healthy:
            raise RuntimeError("the drafter has ended")

    async def __del__(self) -> None:
        """Called by Serve when the replica shuts down."""
        # Absent when __init__ failed.
        if hasattr(self, "_server"):
            await self._server.leave()
            await self._server.stop()
            await asyncio.to_thread(shutdown)
