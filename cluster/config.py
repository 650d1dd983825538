"""Everything that an operator can set, in one model: from a YAML file, `--set` overrides and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cluster.channel.spec import CHANNEL_NAME, Channel
from cluster.gateway.spec import GatewaySpec
from cluster.scheduling.registry import PlannerName
from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import STRICT_LAWS
from drafter_service.spec import DrafterKind, DrafterSpec
from verifier_service.spec import DraftingMode, VerifierSpec

ACCELERATOR_LABEL = "ray.io/accelerator-type"
ROLE_LABEL = "truedraft.io/role"

# cluster.checkpoints.DEFAULT_REFERENCE, which takes seconds to import; a test compares them.
DEFAULT_MODEL = "smollm2-135m-instruct"

DEFAULT_DOMAINS = ("agent", "chat", "coding", "edit", "frontend", "safety", "story")

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
Label = Annotated[str, Field(min_length=1, max_length=64)]
Dtype = Literal["float32", "bfloat16", "float16"]

LOSSY_LAWS = tuple(name for name, known in LAWS.items() if not known.lossless)
# For the JSON schema alone: the validator has better words.
StrictLaw = Annotated[str, Field(json_schema_extra={"enum": list(STRICT_LAWS)})]
LossyLaw = Annotated[str, Field(json_schema_extra={"enum": list(LOSSY_LAWS)})]


EXPOSED_DRAFTS = (
    "Drafts would cross the network in plain text: give channel.certificate, channel.private_key and "
    "channel.authority, or set channel.plaintext."
)


EXPOSED_GATEWAY = (
    "Whoever reaches the gateway would be let in without a key: give gateway.keys_file, or set "
    "gateway.anonymous."
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ConfigError(ValueError):
    """The configuration cannot be used; the message is one sentence that names the field."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Placement(_Section):
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


class Laws(_Section):
    """allowed: the strict laws a request may ask for; lossy: the lossy ones, of which none is served unless
    it is named here; default: the law of a request that asks for none; max_distortion, max_overshoot: the
    most that a request may ask a lossy law for, total variation a token and out(x) / p(x), which also hold
    where it asks for nothing.
    """

    allowed: tuple[StrictLaw, ...] = tuple(STRICT_LAWS)
    lossy: tuple[LossyLaw, ...] = ()
    default: str = "coupled"
    max_distortion: float | None = Field(default=None, ge=0, le=1)
    max_overshoot: float | None = Field(default=None, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _known(self) -> Self:
        for law in (*self.allowed, self.default):
            if law not in STRICT_LAWS:
                raise ValueError(f"{law!r} is no strict law; strict laws: {', '.join(STRICT_LAWS)}")
        for law in self.lossy:
            if law not in LOSSY_LAWS:
                raise ValueError(f"{law!r} is no lossy law; lossy laws: {', '.join(LOSSY_LAWS)}")
            takes = {parameter.name for parameter in LAWS[law].parameters}
            for field, name in (("max_distortion", "max_distortion"), ("max_overshoot", "ceiling")):
                if getattr(self, field) is not None and name not in takes:
                    raise ValueError(f"{law!r} keeps no {field}: take it out of lossy, or set none")
        if self.default not in self.allowed:
            raise ValueError(f"the default law {self.default!r} is not among the allowed laws")
        return self

    @property
    def served(self) -> tuple[str, ...]:
        return (*self.allowed, *self.lossy)


class Gateway(_Section):
    """host: where HTTP is bound (Serve binds gRPC on every interface: cluster/gateway/servicer.py); ports: 0
    picks a free one; max_tokens: the most a request may ask for, unset leaves it to the context;
    first_token_timeout_s: how long a request may wait for a verifier before it is answered with UNAVAILABLE;
    keys_file: of API keys and tenants (cluster/gateway/tenants.py); anonymous: without one, let everybody
    in, wherever they come from; trace_url: of a trace in the tracing UI, such as
    http://localhost:16686/trace/{trace_id}, for the console's links.
    """

    host: str = "127.0.0.1"
    grpc_port: Port = 9000
    http_port: Port = 8000
    replicas: Count = 1
    placement: Placement = Placement(num_cpus=0.5)
    max_ongoing_requests: Count = 1024
    default_max_tokens: Count = 256
    max_tokens: Count | None = None
    max_stop_strings: Count = 16
    first_token_timeout_s: float = Field(default=300.0, gt=0)
    keys_file: Path | None = None
    anonymous: bool = False
    trace_url: str = Field(default="", pattern=r"^(https?://.*\{trace_id\}.*)?$")

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.anonymous and self.keys_file is not None:
            raise ValueError("anonymous is for a gateway without keys_file")
        return self


class Verifier(_Section):
    """The fields of VerifierSpec, replicas and placement. dtype: of weights and arithmetic; int8: of weights
    alone, on a CPU, which makes another model of the checkpoint. max_replicas: how many Serve may add to
    while each has more requests than max_active; unset: none. block_length is the most drafts of a round,
    block_length_min the least under planner goodput, which by itself drafts as many as pay.
    """

    dtype: Literal["float32", "bfloat16", "float16", "int8"] = "float32"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    max_active: Count = 16
    max_queued: int = Field(default=256, ge=0)
    kv_tokens: Count = 65536
    prefix_caching: bool = True
    step_rows: Count = 512
    planner: PlannerName = PlannerName.GOODPUT
    block_length: int = Field(default=8, ge=0, le=64)
    block_length_min: int = Field(default=0, ge=0, le=64)
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
        if self.max_replicas is None:
            return {"num_replicas": self.replicas}
        bounds = {"min_replicas": self.replicas, "max_replicas": self.max_replicas}
        return {"autoscaling_config": {**bounds, "target_ongoing_requests": self.max_active}}

    @model_validator(mode="after")
    def _replicas_are_ordered(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas must be at least replicas = {self.replicas}, got {self.max_replicas}"
            )
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


class Drafter(_Section):
    """mode: remote drafts in the drafter deployment, local inside the verifiers (n-gram only), both where a
    request does better, off not at all; model: of a causal_lm, unset drafts with the target itself; of a
    dflash, the folder or hub id of a checkpoint that was made for the target; dtype: also of the features
    that a dflash is sent; ports: first and last of a range to listen on, unset takes any free port.
    """

    mode: DraftingMode = DraftingMode.REMOTE
    kind: DrafterKind = DrafterKind.NGRAM
    model: str | None = None
    dtype: Dtype = "float32"
    device: str = "cpu"
    threads: int = Field(default=0, ge=0)
    ports: tuple[Port, Port] | None = None
    replicas: Count = 1
    placement: Placement = Placement(num_gpus=1.0, label_selector={ACCELERATOR_LABEL: "L4"})

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


class Audit(_Section):
    """enabled: whether strict laws are audited on live traffic; replay_share: of finished answers under
    coupled and none that are decoded again without drafts, when there is time.
    """

    enabled: bool = True
    replay_share: float = Field(default=0.01, ge=0, le=1)


class DraftingChannel(_Section):
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


class EmulatedNode(_Section):
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


class Emulation(_Section):
    """Starts a Ray cluster on this machine instead of joining one; the first node is the head."""

    enabled: bool = False
    nodes: Annotated[tuple[EmulatedNode, ...], Field(min_length=1)] = (
        EmulatedNode(labels={ROLE_LABEL: "gateway"}),
        _gpu_node("L4"),
        _gpu_node("H100"),
    )


class ClusterConfig(_Section):
    """model: name of a packaged model, a local directory, or a hub id with optional @revision;
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

    @property
    def served_name(self) -> str:
        if self.served_model_name:
            return self.served_model_name
        # Where a directory lies is not for clients to know.
        is_path = self.model.startswith(("/", "./", "../", "~"))
        return Path(self.model).name if is_path else self.model

    @property
    def drafts_remotely(self) -> bool:
        return self.drafter.mode in (DraftingMode.REMOTE, DraftingMode.BOTH)

    @property
    def exposes_drafts(self) -> bool:
        """Whether drafts would cross the network in plain text without a word from the operator."""
        unprotected = self.channel.certificate is None and not self.channel.plaintext
        return self.drafts_remotely and unprotected and not self.emulation.enabled

    @property
    def exposes_gateway(self) -> bool:
        """Whether others than this machine's users would be let in without a key and without a word from
        the operator."""
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
            # A request that the cache cannot hold would wait for ever.
            max_context=self.verifier.kv_tokens,
            first_token_timeout_s=self.gateway.first_token_timeout_s,
            max_requests=self.gateway.max_ongoing_requests,
            keys_file=str(self.gateway.keys_file.expanduser()) if self.gateway.keys_file else None,
            domains=self.domains,
            measured=self.measured,
            trace_url=self.gateway.trace_url,
            max_distortion=self.laws.max_distortion,
            max_overshoot=self.laws.max_overshoot,
        )

    def verifier_spec(self) -> VerifierSpec:
        own = {name: getattr(self.verifier, name) for name in _shared(VerifierSpec, Verifier)}
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


def _shared(spec: type[VerifierSpec] | type[DrafterSpec], section: type[_Section]) -> list[str]:
    return [field.name for field in fields(spec) if field.name in section.model_fields]


def load_config(
    path: Path | None = None, overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> ClusterConfig:
    """Later ones win: the YAML file, `a.b=value` overrides with values in YAML, flags by dotted name.

    Raises ConfigError.
    """
    document = _read(path) if path else {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{override!r} is not of the form section.field=value.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"{name}: {text!r} is not a YAML value.") from None
        _put(document, name.strip(), value)
    for name, value in (flags or {}).items():
        _put(document, name, value)
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> ClusterConfig:
    """A configuration as it comes from YAML. Raises ConfigError."""
    try:
        return ClusterConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a mapping of fields, not a {type(document).__name__}.")
    # A section whose fields are all commented out is null.
    return {name: value for name, value in document.items() if value is not None}


def _put(document: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, name = dotted.split(".")
    for section in sections:
        inner = document.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {section} is a value, not a section.")
        document = inner
    document[name] = value


def _sentence(error: ValidationError) -> str:
    """The first problem, as one sentence that names the field."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "configuration"
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a field of the configuration."
    if problem["type"] == "tuple_type":
        return f"{where}: should be a list, such as [{problem['input']}]."
    text = problem["msg"].removeprefix("Value error, ")
    given = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
    return f"{where}: {text[:1].lower()}{text[1:]}{given}."
