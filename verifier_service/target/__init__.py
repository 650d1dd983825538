"""The target model: its weights, its forward, and what start-up finds out about both on this machine."""
