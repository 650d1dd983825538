"""Long checks of the properties that the project promises: `make verify`."""
