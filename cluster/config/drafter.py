"""The drafters, and the channel between them and the verifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from cluster.channel.spec import CHANNEL_NAME, Channel
from cluster.config.section import (
    ACCELERATOR_LABEL,
    Count,
    Dtype,
    Placement,
    Port,
    Section,
    check_order,
    scale,
)
from drafter_service.spec import DrafterKind
from verifier_service.spec import DraftingMode


class Drafter(Section):
    """mode: remote drafts in the drafter deployment, local inside the verifiers (n-gram only), both where a
    request does better, off not at all; model: of a causal_lm, unset drafts with the target itself; of a
    dflash, the folder or hub id of a checkpoint that was made for the target; dtype: also of the features
    that a dflash is sent; ports: first and last of a range to listen on, unset takes any free port;
    max_replicas: how many Serve may add to while of each more than target_blocks blocks are wanted at a time,
    on average; unset: none.
    """

    mode: DraftingMode = DraftingMode.REMOTE
    kind: DrafterKind = DrafterKind.NGRAM
    model: str | None = None
    dtype: Dtype = "float32"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    ports: tuple[Port, Port] | None = None
    replicas: Count = 1
    max_replicas: Count | None = None
    target_blocks: float = Field(default=4.0, gt=0)
    placement: Placement = Placement(num_gpus=1.0, label_selector={ACCELERATOR_LABEL: "L4"})

    def scale(self) -> dict[str, Any]:
        """For a Serve deployment's options."""
        options = scale(self.replicas, self.max_replicas, self.target_blocks)
        if "autoscaling_config" in options:
            policy = {"policy_function": "drafter_service.scaling:by_wanted_blocks"}
            options["autoscaling_config"]["policy"] = policy
        return options

    @model_validator(mode="after")
    def _replicas_are_ordered(self) -> Self:
        check_order(self.replicas, self.max_replicas)
        return self

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_off(cls, mode: object) -> object:
        # YAML 1.1 reads a bare `off` as false.
        return "off" if mode is False else mode

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mode is DraftingMode.LOCAL and self.kind is not DrafterKind.NGRAM:
            raise ValueError(f"mode local drafts with kind ngram only, not {self.kind.value}")
        if self.kind is DrafterKind.NGRAM and self.model is not None:
            raise ValueError("kind ngram takes no model")
        if self.kind is DrafterKind.DFLASH and not self.model:
            raise ValueError("kind dflash needs a model, the folder or hub id of its checkpoint")
        if self.ports is not None and self.ports[0] > self.ports[1]:
            raise ValueError(f"ports are first and last of a range, got {self.ports[0]} and {self.ports[1]}")
        return self


class DraftingChannel(Section):
    """TLS between verifiers and drafters, both sides verified. certificate, private_key, authority: PEM files
    on every node, all three or none, read again when they change; name: the DNS name that every certificate
    must carry; plaintext: without certificates, send drafts across the network all the same.
    """

    certificate: Path | None = None
    private_key: Path | None = None
    authority: Path | None = None
    name: str = Field(default=CHANNEL_NAME, min_length=1)
    plaintext: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = [path is not None for path in (self.certificate, self.private_key, self.authority)]
        if any(given) and not all(given):
            raise ValueError("certificate, private_key and authority go together")
        if all(given) and self.plaintext:
            raise ValueError("plaintext is for a channel without certificates")
        return self

    def channel(self) -> Channel:
        paths = (self.certificate, self.private_key, self.authority)
        certificate, key, authority = (str(path.expanduser()) if path else "" for path in paths)
        return Channel(certificate, key, authority, self.name, self.plaintext)
