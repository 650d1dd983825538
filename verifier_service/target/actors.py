"""The other ranks of a replica's target, as actors in the replica's own placement group."""

from __future__ import annotations

from typing import Any

import ray
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.telemetry.logs import log_as_json
from verifier_service.spec import VerifierSpec
from verifier_service.target.following import run_rank


@ray.remote(max_restarts=0)
class Rank:
    """One of them."""

    def run(self, spec: VerifierSpec, rank: int, port: int, replica: str) -> None:
        """Until rank 0 leaves."""
        log_as_json("truedraft-verifier", f"{replica}#rank{rank}")
        run_rank(spec, rank, port)


class RankActors:
    """To be used in a replica whose placement group has a bundle for each rank, the first being its own. They
    end with the replica, which owns them."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._actors: list[Any] = []
        self._runs: list[Any] = []

    def start(self, spec: VerifierSpec, port: int) -> None:
        """Starts ranks 1 and up, which meet rank 0 on its port. Raises ValueError outside of
        such a replica."""
        group = get_current_placement_group()
        if group is None:
            raise ValueError("a replica with several ranks needs a placement group")
        for rank in range(1, spec.tensor_parallel_size):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            bundle = group.bundle_specs[rank]
            rank_actor: Any = Rank
            actor = rank_actor.options(
                scheduling_strategy=strategy, num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0)
            ).remote()
            self._actors.append(actor)
            self._runs.append(actor.run.remote(spec, rank, port, self._replica))

    @property
    def complete(self) -> bool:
        """Whether none has ended."""
        return not self._runs or not ray.wait(self._runs, timeout=0)[0]
