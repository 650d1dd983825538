"""How the engine asks for blocks: in this process, or from drafter replicas over gRPC."""
