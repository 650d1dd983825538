"""Many requests at a time: cluster and engine against transformers and vLLM."""
