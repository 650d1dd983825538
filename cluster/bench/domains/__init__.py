"""What drafters are worth by domain."""
