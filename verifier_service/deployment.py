"""The verifier as a Serve deployment: one engine in a thread of its own, events on the replica's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import ray
from prometheus_client import Metric
from ray import serve

from cluster.drafting import NgramDrafter
from cluster.passing_thread import in_passing_thread
from cluster.speculation.request import Committed, GenerationEvent, GenerationRequest
from cluster.telemetry.logs import log_as_json
from cluster.telemetry.metrics import setup_metrics
from cluster.telemetry.setup import setup, shutdown
from verifier_service.build import LoadedTarget, build_engine, load_target
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.metering import register_drafting
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort
from verifier_service.drafting.remote import HelloInfo, RemoteDrafting
from verifier_service.drafting.serve_resolver import ServeResolver
from verifier_service.requests.pacing import Outbox
from verifier_service.spec import DraftingMode, VerifierSpec
from verifier_service.target.actors import RankActors

_log = logging.getLogger(__name__)


@serve.deployment
class VerifierDeployment:
    """One replica. drafters: the Serve application of the drafters, None unless drafting is remote."""

    async def __init__(  # type: ignore[misc] # as Serve wants it
        self, spec: VerifierSpec, drafters: str | None = None
    ) -> None:
        self._replica = serve.get_replica_context().replica_tag
        log_as_json("truedraft-verifier", self._replica)
        self._loop = asyncio.get_running_loop()
        self._ranks = RankActors(self._replica)
        loaded = await in_passing_thread(load_target, spec, self._ranks.start)
        self._numerics = loaded.numerics
        self._stream_interval = spec.stream_interval_s
        self._context = loaded.model.context
        self._size = spec.tensor_parallel_size
        self._remote: RemoteDrafting | None = None
        tracer = setup("truedraft-verifier", replica=self._replica)
        self._metrics = setup_metrics("truedraft-verifier", replica=self._replica)
        drafting = self._drafting(spec, loaded, drafters)
        self._engine = build_engine(loaded, spec, drafting, tracer, self._replica, self._metrics.meter)
        self._thread = threading.Thread(target=self._engine.run, name="engine", daemon=True)
        self._thread.start()

    def _drafting(
        self, spec: VerifierSpec, loaded: LoadedTarget, drafters: str | None
    ) -> DraftingPort | Pools | None:
        match spec.drafting:
            case DraftingMode.OFF:
                return None
            case DraftingMode.LOCAL:
                return LocalDrafting(NgramDrafter())
            case DraftingMode.REMOTE | DraftingMode.BOTH:
                hello = HelloInfo(
                    tokenizer_hash=loaded.tokenizer_hash,
                    vocab_size=len(loaded.tokenizer),
                    target_model=loaded.checkpoint.reference,
                    target_revision=loaded.checkpoint.revision,
                    verifier_replica=self._replica,
                    features=loaded.model.fuser.info if loaded.model.fuser is not None else None,
                )
                # By name: the drafters may be deployed anew, or come later.
                handle: Any = serve.get_deployment_handle("DrafterDeployment", drafters, _check_exists=False)
                remote = RemoteDrafting(ServeResolver(handle), hello, self._loop, spec.channel)
                register_drafting(self._metrics.meter, remote)
                self._remote = remote
                if spec.drafting is DraftingMode.REMOTE:
                    return remote
                return Pools({"drafters": remote, "ngram": LocalDrafting(NgramDrafter())})

    async def generate(self, request: GenerationRequest) -> AsyncIterator[tuple[GenerationEvent, ...]]:
        """The events of one request, as many as are there at a time, ended by one that is not Committed.
        Leaving early frees it."""
        events = Outbox(self._stream_interval)
        self._engine.submit(request, lambda event: _hand_over(events, event))
        over = False
        try:
            async for together in events.paced():
                over = not isinstance(together[-1], Committed)
                yield together
        finally:
            if not over:
                self._engine.cancel(request.request_id)

    async def info(self) -> dict[str, Any]:
        """Where this replica runs, what it holds and what it is doing."""
        load = self._engine.load()
        return {
            "replica": self._replica,
            "node_id": ray.get_runtime_context().get_node_id(),
            "labels": dict(ray.get_runtime_context().get_node_labels()),
            "row_invariant": self._numerics.row_invariant,
            "context": self._context,
            "tensor_parallel_size": self._size,
            "drafting": self._remote.state if self._remote is not None else "in-process or off",
            "drafters": self._remote.spread() if self._remote is not None else {},
            "ahead": dict(self._remote.ahead) if self._remote is not None else {},
            "costs": self._engine.measurements.summary(),
            "active": load.active,
            "queued": load.queued,
            "kv_tokens": load.kv_tokens,
            "tasks": len(asyncio.all_tasks()),
            "counted": self._engine.counted(),
            "audits": [asdict(state) | {"alarm": state.alarm} for state in self._engine.audits()],
        }

    def metrics(self) -> list[Metric]:
        """What this replica has counted."""
        return self._metrics.families()

    def check_health(self) -> None:
        """Called by Serve. Raises RuntimeError when the replica has to be replaced."""
        if not self._thread.is_alive():
            raise RuntimeError("the engine's thread has ended")
        if not self._ranks.complete:
            raise RuntimeError("a process that holds a share of the target has ended")

    async def __del__(self) -> None:
        """Called by Serve when the replica shuts down."""
        # Absent when __init__ failed.
        if not hasattr(self, "_thread"):
            return
        self._engine.stop()
        await asyncio.to_thread(self._thread.join, 10.0)
        if self._remote is not None:
            await self._remote.aclose()
        await asyncio.to_thread(shutdown)


def _hand_over(events: Outbox, event: GenerationEvent) -> None:
    """In the engine's thread, which goes on whatever has become of the loop."""
    try:
        events.put(event)
    except RuntimeError:
        _log.debug("an event came after the replica's loop had closed")
