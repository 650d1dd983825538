"""Names of attributes and metrics, and the set-up of tracers and meters: used by every process."""
