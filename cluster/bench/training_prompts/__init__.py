"""The prompts that the drafter of the default model was trained on: templates, and text of this machine."""
