"""Measurements, a folder each, beside what they share. Every figure is a ratio of things run side by side."""
