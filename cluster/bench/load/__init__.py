"""Speculation against none with 1 to 64 requests at a time."""
