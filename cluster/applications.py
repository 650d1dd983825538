"""The deployments as two Serve applications. `truedraft serve` builds them from its configuration; a Serve
config file, such as the chart's, by import path with a configuration as `args`: `truedraft`, `drafters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig

from cluster.config import EXPOSED_DRAFTS, EXPOSED_GATEWAY, ClusterConfig, ConfigError, parse_config
from cluster.gateway.ingress import GatewayDeployment
from cluster.gateway.routing import PrefixAffineRouter
from drafter_service.deployment import DrafterDeployment
from verifier_service.deployment import VerifierDeployment

APPLICATION: Final = "truedraft"
# An application of its own: the cluster comes up, and stays up, whatever becomes of the drafters.
DRAFTERS: Final = "truedraft-drafters"

_HEALTH_S = 1.0


def truedraft(args: Mapping[str, Any]) -> serve.Application:
    """Gateway and verifiers, for Serve's `import_path`. args: a configuration. Raises ConfigError."""
    config = _parsed(args)
    if config.exposes_gateway:
        raise ConfigError(EXPOSED_GATEWAY)
    return serving(config)


def drafters(args: Mapping[str, Any]) -> serve.Application:
    """The drafters, for Serve's `import_path`. args: a configuration. Raises ConfigError."""
    return drafting(_parsed(args))


def serving(config: ClusterConfig, affine: bool = True) -> serve.Application:
    """Gateway and verifiers. affine: requests go where the pages of their beginnings are, not to whoever has
    least to do, which is for comparison."""
    verifier: Any = VerifierDeployment
    router: Any = PrefixAffineRouter
    routing = RequestRouterConfig(
        request_router_class=router,
        request_router_kwargs={"lead": max(1, config.verifier.max_active // 4)},
    )
    verifiers = verifier.options(
        **config.verifier.scale(),
        health_check_period_s=_HEALTH_S,
        # The engine shares the interpreter with the health check.
        health_check_timeout_s=30.0,
        # Twice what the engine takes, so that it refuses at once what would otherwise wait out of sight.
        max_ongoing_requests=2 * (config.verifier.max_active + config.verifier.max_queued) + 16,
        **config.verifier.placed(),
        request_router_config=routing if affine else RequestRouterConfig(),
    ).bind(config.verifier_spec(), DRAFTERS if config.drafts_remotely else None)
    gateway: Any = GatewayDeployment
    application: serve.Application = gateway.options(
        num_replicas=config.gateway.replicas,
        # More than the gateway takes, so that it refuses in its own words; beyond, Serve does.
        max_ongoing_requests=2 * config.gateway.max_ongoing_requests + 16,
        max_queued_requests=config.gateway.max_ongoing_requests,
        ray_actor_options=config.gateway_placement.actor_options(),
    ).bind(config.gateway_spec(), verifiers)
    return application


def drafting(config: ClusterConfig) -> serve.Application:
    """The drafters."""
    deployment: Any = DrafterDeployment
    application: serve.Application = deployment.options(
        **config.drafter.scale(),
        # One that was killed is replaced within seconds.
        health_check_period_s=_HEALTH_S,
        health_check_timeout_s=10.0,
        # Carries no requests but verifiers' questions where it is.
        max_ongoing_requests=1000,
        ray_actor_options=config.drafter.placement.actor_options(),
    ).bind(config.drafter_spec())
    return application


def _parsed(args: Mapping[str, Any]) -> ClusterConfig:
    config = parse_config(args)
    if config.emulation.enabled:
        # Its exemptions are for a machine that nobody else reaches.
        raise ConfigError("emulation.enabled is for `truedraft serve`: here it would start nothing.")
    if config.exposes_drafts:
        raise ConfigError(EXPOSED_DRAFTS)
    return config
