"""Everything that an operator can set, in one model: from a YAML file, `--set` overrides and flags."""

from __future__ import annotations

from cluster.config.cluster import DEFAULT_DOMAINS, EXPOSED_DRAFTS, EXPOSED_GATEWAY, ClusterConfig
from cluster.config.drafter import Drafter
from cluster.config.emulation import EmulatedNode, Emulation
from cluster.config.loading import ConfigError, load_config, parse_config
from cluster.config.section import ACCELERATOR_LABEL, Placement
from cluster.config.verifier import Verifier

__all__ = [
    "ACCELERATOR_LABEL",
    "DEFAULT_DOMAINS",
    "EXPOSED_DRAFTS",
    "EXPOSED_GATEWAY",
    "ClusterConfig",
    "ConfigError",
    "Drafter",
    "EmulatedNode",
    "Emulation",
    "Placement",
    "Verifier",
    "load_config",
    "parse_config",
]
