"""How many tokens live audits need to find planted faults."""
