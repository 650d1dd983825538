"""The Serve ingress: from a client's request to a verifier's events, and back with provenance."""
