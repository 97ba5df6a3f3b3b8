"""One module for each command, its action, and one YAML table, its arguments."""
