"""The verifiers: their engine, replicas and audits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from cluster.config.section import ACCELERATOR_LABEL, Count, Label, Placement, Section, check_order, scale
from cluster.scheduling.registry import PlannerName


class Verifier(Section):
    """The fields of VerifierSpec, replicas and placement. dtype: of weights and arithmetic; int8: of weights
    alone, on a CPU, which makes another model of the checkpoint. tensor_parallel_size: processes that share
    the target of a replica, on one node; its placement is what they reserve together. rank_timeout_s: how
    long they wait for one that does not answer before the replica is replaced. adapters: folders of
    LoRA adapters on every verifier's node, by the name that clients ask for as a model. max_replicas: how
    many Serve may add to while each has more requests than max_active; unset: none. block_length is the most
    drafts of a round, block_length_min the least under planner goodput, which by itself drafts as many as
    pay; block_width is the most at each position, above 1 for trees under the coupled law.
    """

    dtype: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    rank_timeout_s: float = Field(default=60.0, gt=0)
    adapters: dict[Label, Path] = Field(default_factory=dict)
    max_active: Count = 64
    max_queued: int = Field(default=256, ge=0)
    kv_tokens: Count = 65536
    prefix_caching: bool = True
    step_rows: Count = 640
    planner: PlannerName = PlannerName.GOODPUT
    block_length: int = Field(default=8, ge=0, le=64)
    block_length_min: int = Field(default=0, ge=0, le=64)
    block_width: int = Field(default=1, ge=1, le=8)
    stop_below: float = Field(default=0.0, ge=0, le=1)
    draft_ahead: bool = True
    gather_s: float = Field(default=0.005, ge=0)
    draft_deadline_s: float = Field(default=2.0, gt=0)
    draft_patience_s: float = Field(default=30.0, gt=0)
    stream_interval_s: float = Field(default=0.2, ge=0, le=10)
    proposal_entries: int = Field(default=16, ge=1, le=256)
    replicas: Count = 1
    max_replicas: Count | None = None
    placement: Placement = Placement(num_gpus=1.0, label_selector={ACCELERATOR_LABEL: "H100"})

    def scale(self) -> dict[str, Any]:
        """For a Serve deployment's options."""
        return scale(self.replicas, self.max_replicas, self.max_active)

    @model_validator(mode="after")
    def _replicas_are_ordered(self) -> Self:
        check_order(self.replicas, self.max_replicas)
        return self

    def placed(self) -> dict[str, Any]:
        """Where its replicas run, for a Serve deployment's options."""
        if self.tensor_parallel_size > 1:
            return self.placement.over_ranks(self.tensor_parallel_size)
        return {"ray_actor_options": self.placement.actor_options()}

    @model_validator(mode="after")
    def _ranks_have_gpus(self) -> Self:
        if self.tensor_parallel_size > 1 and self.placement.num_gpus % self.tensor_parallel_size:
            raise ValueError(
                f"placement.num_gpus must be a multiple of tensor_parallel_size = "
                f"{self.tensor_parallel_size}, got {self.placement.num_gpus:g}"
            )
        return self

    @model_validator(mode="after")
    def _adapters_are_whole(self) -> Self:
        if self.adapters and self.tensor_parallel_size > 1:
            raise ValueError(f"adapters need tensor_parallel_size = 1, got {self.tensor_parallel_size}")
        return self

    @model_validator(mode="after")
    def _integers_are_for_a_cpu(self) -> Self:
        if self.dtype == "int8" and self.device != "cpu":
            raise ValueError(f"dtype int8 runs on device cpu alone, got {self.device}")
        return self

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        if self.block_length_min > self.block_length:
            raise ValueError(
                f"block_length_min must be at most block_length = {self.block_length}, "
                f"got {self.block_length_min}"
            )
        # Cutting a block because of what came with it would make its length depend on others' drafts.
        needed = self.max_active * (self.block_length + 1)
        if self.step_rows < needed:
            raise ValueError(
                f"step_rows must be at least max_active x (block_length + 1) = {needed}, got {self.step_rows}"
            )
        return self


class Audit(Section):
    """enabled: whether strict laws are audited on live traffic; replay_share: of finished answers under
    coupled and none that are decoded again without drafts, when there is time.
    """

    enabled: bool = True
    replay_share: float = Field(default=0.01, ge=0, le=1)
