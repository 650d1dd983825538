"""Training a block-diffusion drafter for a target: answers, features, blocks, the loop and its report."""
