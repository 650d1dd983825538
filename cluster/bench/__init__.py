"""Measurements and long checks: every figure is a ratio of things run side by side."""
