"""Keys and values of all sequences, in pages that requests of one tenant share by name."""
