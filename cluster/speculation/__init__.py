"""The shared language of drafting and verifying: laws, noise, transforms and messages. Pure."""
