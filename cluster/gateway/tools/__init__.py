"""Calls of functions: what may be called, how the model is told, what it may say, how it is read."""
