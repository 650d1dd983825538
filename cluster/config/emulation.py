"""The nodes of a Ray cluster on one machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.config.section import ACCELERATOR_LABEL, Count, Section

ROLE_LABEL = "truedraft.io/role"


class EmulatedNode(Section):
    """A Ray node on this machine that claims labels, GPUs and resources which it does not have."""

    labels: dict[str, str] = Field(default_factory=dict)
    num_cpus: Count = 4
    num_gpus: int = Field(default=0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)
    object_store_mb: int = Field(default=80, ge=75)


def _gpu_node(accelerator: str) -> EmulatedNode:
    return EmulatedNode(
        labels={ACCELERATOR_LABEL: accelerator}, num_gpus=1, resources={f"accelerator_type:{accelerator}": 1}
    )


class Emulation(Section):
    """Starts a Ray cluster on this machine instead of joining one; the first node is the head."""

    enabled: bool = False
    nodes: Annotated[tuple[EmulatedNode, ...], Field(min_length=1)] = (
        EmulatedNode(labels={ROLE_LABEL: "gateway"}),
        _gpu_node("L4"),
        _gpu_node("H100"),
    )
