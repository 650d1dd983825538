"""The OpenAI-compatible front: another wire before the service that gRPC asks."""
