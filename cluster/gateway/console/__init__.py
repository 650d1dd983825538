"""The console: one page for people, and the numbers behind it."""
