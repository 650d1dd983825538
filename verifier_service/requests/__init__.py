"""One request inside the engine: its tokens, its place in a round, and the answer that it becomes."""
