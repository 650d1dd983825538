"""How many drafter replicas Serve keeps: it sees streams, and not what goes over them."""

from __future__ import annotations

from typing import Any, Final

from ray.serve.config import AutoscalingContext

# What a replica reports: blocks that are wanted of it at a time.
BLOCKS: Final = "blocks"


def by_wanted_blocks(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Serve's policy: as many replicas as have `target_ongoing_requests` blocks wanted of each, within the
    bounds and after the delays of the deployment."""
    wanted = sum((context.aggregated_metrics or {}).get(BLOCKS, {}).values())
    assert context.config is not None  # or Serve would not ask
    return max(1.0, wanted / context.config.target_ongoing_requests), {}
