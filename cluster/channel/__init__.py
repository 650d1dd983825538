"""The security of the drafting channel, as both of its sides see it."""
