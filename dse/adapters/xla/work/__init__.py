"""Work of instructions by XLA's rules: arithmetic, bytes, trips of loops."""
