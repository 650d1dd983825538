"""What every section of the configuration is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ACCELERATOR_LABEL = "ray.io/accelerator-type"

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
Label = Annotated[str, Field(min_length=1, max_length=64)]
Dtype = Literal["float32", "bfloat16", "float16"]


class Section(BaseModel):
    """Fields that nobody knows are refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Placement(Section):
    """Where replicas may run, in Ray's terms; what each of them reserves."""

    label_selector: dict[str, str] = Field(default_factory=dict)
    num_cpus: float = Field(default=1.0, ge=0)
    num_gpus: float = Field(default=0.0, ge=0)
    resources: dict[str, float] = Field(default_factory=dict)

    def actor_options(self) -> dict[str, Any]:
        """For Serve's ray_actor_options."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.label_selector:
            options["label_selector"] = dict(self.label_selector)
        if self.resources:
            options["resources"] = dict(self.resources)
        return options

    def over_ranks(self, size: int) -> dict[str, Any]:
        """A Serve deployment's options for replicas of so many processes each, on one node: what a replica
        reserves is divided among them, but for `resources`, which the first has."""
        share = {"CPU": self.num_cpus / size, "GPU": self.num_gpus / size}
        options = self.actor_options() | {"num_cpus": share["CPU"], "num_gpus": share["GPU"]}
        selector = options.pop("label_selector", None)
        bundles = [share | self.resources, *(dict(share) for _ in range(size - 1))]
        placed: dict[str, Any] = {
            "ray_actor_options": options,
            "placement_group_bundles": bundles,
            "placement_group_strategy": "STRICT_PACK",
        }
        if selector:
            placed["placement_group_bundle_label_selector"] = [selector] * size
        return placed


def check_order(replicas: int, most: int | None) -> None:
    """Raises ValueError for bounds of replicas that contradict each other."""
    if most is not None and most < replicas:
        raise ValueError(f"max_replicas must be at least replicas = {replicas}, got {most}")


def scale(replicas: int, most: int | None, target: float) -> dict[str, Any]:
    """For a Serve deployment's options. target: of the load of each, where Serve may add replicas."""
    if most is None:
        return {"num_replicas": replicas}
    bounds = {"min_replicas": replicas, "max_replicas": most}
    return {"autoscaling_config": {**bounds, "target_ongoing_requests": target}}
