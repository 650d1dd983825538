"""The step loop, and the roles that follow one another in a step."""
