"""The verifier: a Serve deployment whose engine owns the truth about every sequence."""
