"""How a target's layers are computed, so that a row's bits follow from its own prefix alone."""
