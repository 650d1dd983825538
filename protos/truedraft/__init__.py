"""Client-side import root of the generated protocol stubs."""
