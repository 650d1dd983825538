"""One target over several processes, each with a share of its heads and weights."""
