"""What a gateway replica is configured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """model: a checkpoint reference; served_name: what clients call it; laws: the ones served; max_tokens:
    the most a request may ask for, None for what the context leaves; max_context: tokens a verifier can hold
    for one request; first_token_timeout_s: how long a request may wait for a verifier; max_requests: answers
    that a replica waits for at a time; keys_file: of API keys, None where nobody is asked for one; domains:
    labels that metrics tell apart; measured: acceptance length of rounds with a block by domain, as last
    measured; trace_url: of a trace in the tracing UI, with {trace_id} in it; max_distortion, max_overshoot:
    the most that a lossy law may be asked for, total variation a token and out(x) / p(x), None: no ceiling;
    adapters: of the target, which are models of their own to clients.
    """

    model: str
    served_name: str
    cache_dir: str | None
    laws: tuple[str, ...]
    default_law: str
    default_max_tokens: int
    max_tokens: int | None
    max_stop_strings: int
    max_context: int
    first_token_timeout_s: float
    max_requests: int
    keys_file: str | None = None
    domains: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    trace_url: str = ""
    max_distortion: float | None = None
    max_overshoot: float | None = None
    adapters: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """What clients may ask for."""
        return (self.served_name, *self.adapters)
