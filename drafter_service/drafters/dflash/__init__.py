"""Block-diffusion drafters: DFlash and DFlash 2."""
