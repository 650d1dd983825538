"""Against what serves the same model otherwise: vLLM and transformers, one request at a time and many."""
