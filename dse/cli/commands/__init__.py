"""One module for each command: its arguments, and its action."""
