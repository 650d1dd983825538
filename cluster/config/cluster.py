"""The whole configuration, and what each deployment is given of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from cluster.config.drafter import Drafter, DraftingChannel
from cluster.config.emulation import Emulation
from cluster.config.gateway import Gateway
from cluster.config.laws import Laws
from cluster.config.section import Label, Placement, Section
from cluster.config.verifier import Audit, Verifier
from cluster.gateway.spec import GatewaySpec
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.spec import DraftingMode, VerifierSpec

# cluster.checkpoints.DEFAULT_REFERENCE, which takes seconds to import; a test compares them.
DEFAULT_MODEL = "smollm2-135m-instruct"

DEFAULT_DOMAINS = ("agent", "chat", "coding", "edit", "frontend", "safety", "story")

EXPOSED_DRAFTS = (
    "Drafts would cross the network in plain text: give channel.certificate, channel.private_key and "
    "channel.authority (--tls-cert, --tls-key, --tls-ca), or set channel.plaintext (--plaintext-drafts)."
)

EXPOSED_GATEWAY = (
    "Whoever reaches the gateway would be let in without a key: give gateway.keys_file (--keys), or set "
    "gateway.anonymous (--anonymous)."
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ClusterConfig(Section):
    """model: name of a packaged model, a local directory or GGUF file, or a hub id with optional
    @revision;
    served_model_name: what clients call it, by default the reference or the directory's name; cache_dir:
    where packaged models are kept on every node; ray_address: the Ray cluster to join, "auto" for the one
    of this machine; domains: labels of requests that metrics and audits tell apart, the others being one;
    measured: acceptance length of rounds with a block by domain, as last measured, to compare live traffic
    with.
    """

    model: str = Field(default=DEFAULT_MODEL, min_length=1)
    served_model_name: str = ""
    cache_dir: Path | None = None
    ray_address: str = "auto"
    start_timeout_s: float = Field(default=600.0, gt=0)
    laws: Laws = Laws()
    gateway: Gateway = Gateway()
    verifier: Verifier = Verifier()
    drafter: Drafter = Drafter()
    audit: Audit = Audit()
    domains: Annotated[tuple[Label, ...], Field(max_length=32)] = DEFAULT_DOMAINS
    measured: dict[Label, Annotated[float, Field(ge=1)]] = Field(default_factory=dict)
    channel: DraftingChannel = DraftingChannel()
    emulation: Emulation = Emulation()

    @model_validator(mode="after")
    def _measured_domains(self) -> Self:
        unknown = sorted(set(self.measured) - set(self.domains))
        if unknown:
            raise ValueError(f"measured names domains that are not among domains: {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _names_of_models_differ(self) -> Self:
        if self.served_name in self.verifier.adapters:
            raise ValueError(f"verifier.adapters has {self.served_name!r}, which is what the model is called")
        return self

    @property
    def served_name(self) -> str:
        if self.served_model_name:
            return self.served_model_name
        # Where a directory lies is not for clients to know.
        is_path = self.model.startswith(("/", "./", "../", "~")) or self.model.endswith(".gguf")
        return Path(self.model).name if is_path else self.model

    @property
    def drafts_remotely(self) -> bool:
        return self.drafter.mode in (DraftingMode.REMOTE, DraftingMode.BOTH)

    @property
    def exposes_drafts(self) -> bool:
        """Whether drafts would cross the network in plain text although the operator has not allowed it."""
        unprotected = self.channel.certificate is None and not self.channel.plaintext
        return self.drafts_remotely and unprotected and not self.emulation.enabled

    @property
    def exposes_gateway(self) -> bool:
        """Whether clients from other machines would need no key although the operator has not allowed it."""
        return self._unguarded and not self.loopback_alone

    @property
    def loopback_alone(self) -> bool:
        """Whether only this machine's users are let in, without a key."""
        return self._unguarded and self.emulation.enabled and self.gateway.host in LOOPBACK

    @property
    def _unguarded(self) -> bool:
        return self.gateway.keys_file is None and not self.gateway.anonymous

    @property
    def gateway_placement(self) -> Placement:
        """Emulated nodes may be taken away by tests and demos, all but the head."""
        placement = self.gateway.placement
        if self.emulation.enabled and not placement.label_selector:
            head = self.emulation.nodes[0].labels
            return placement.model_copy(update={"label_selector": head})
        return placement

    def gateway_spec(self) -> GatewaySpec:
        return GatewaySpec(
            model=self.model,
            served_name=self.served_name,
            cache_dir=self._cache_dir,
            laws=self.laws.served,
            default_law=self.laws.default,
            default_max_tokens=self.gateway.default_max_tokens,
            max_tokens=self.gateway.max_tokens,
            max_stop_strings=self.gateway.max_stop_strings,
            # A request that the cache cannot hold would wait forever.
            max_context=self.verifier.kv_tokens,
            first_token_timeout_s=self.gateway.first_token_timeout_s,
            max_requests=self.gateway.max_ongoing_requests,
            keys_file=str(self.gateway.keys_file.expanduser()) if self.gateway.keys_file else None,
            domains=self.domains,
            measured=self.measured,
            trace_url=self.gateway.trace_url,
            max_distortion=self.laws.max_distortion,
            max_overshoot=self.laws.max_overshoot,
            adapters=tuple(self.verifier.adapters),
        )

    def verifier_spec(self) -> VerifierSpec:
        own = {name: getattr(self.verifier, name) for name in _shared(VerifierSpec, Verifier)}
        own["adapters"] = tuple((name, str(path)) for name, path in self.verifier.adapters.items())
        reads = self.drafter.kind is DrafterKind.DFLASH and self.drafts_remotely
        return VerifierSpec(
            model=self.model,
            cache_dir=self._cache_dir,
            drafting=self.drafter.mode,
            audit=self.audit.enabled,
            replay_share=self.audit.replay_share,
            domains=self.domains,
            channel=self.channel.channel(),
            drafter=(self.drafter.model or "") if reads else "",
            feature_dtype=self.drafter.dtype,
            **own,
        )

    def drafter_spec(self) -> DrafterSpec:
        own = {name: getattr(self.drafter, name) for name in _shared(DrafterSpec, Drafter) if name != "model"}
        drafts_with = "" if self.drafter.kind is DrafterKind.NGRAM else self.drafter.model or self.model
        return DrafterSpec(
            target=self.model,
            model=drafts_with,
            cache_dir=self._cache_dir,
            # Emulated nodes are one machine.
            host="127.0.0.1" if self.emulation.enabled else "",
            channel=self.channel.channel(),
            **own,
        )

    @property
    def _cache_dir(self) -> str | None:
        return str(self.cache_dir.expanduser()) if self.cache_dir else None


def _shared(spec: type[VerifierSpec] | type[DrafterSpec], section: type[Section]) -> list[str]:
    return [field.name for field in fields(spec) if field.name in section.model_fields]
