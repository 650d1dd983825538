"""What the commands of `truedraft` do: cluster/cli.py lists them, cluster/bench has the measurements."""
