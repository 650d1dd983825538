"""The drafter: a Serve deployment whose replicas propose blocks of tokens over gRPC."""
