"""The laws of verification on small vocabularies, where their output can be computed instead of sampled."""
