"""What drafters on GPUs of their own cost and save."""
