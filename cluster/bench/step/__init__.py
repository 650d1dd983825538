"""Where one verify step's time goes."""
