"""Drafters with weights. Those without lie in cluster.drafting."""
