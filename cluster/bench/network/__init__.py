"""What a round trip between verifier and drafter costs, and how much of it is hidden."""
