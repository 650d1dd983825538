"""What traces, metrics and audits cost of the throughput."""
