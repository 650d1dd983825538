"""The gateway: ports, limits, and who is let in."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from cluster.config.section import Count, Placement, Port, Section


class Gateway(Section):
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
