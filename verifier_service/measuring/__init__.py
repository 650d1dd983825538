"""What the engine measures and counts while it serves, and what of it planners are shown."""
