"""What lossy laws emit and gain, against the strict way to the same distribution."""
