"""What instructions ask of a chip, as XLA counts it: arithmetic, bytes, trips of loops."""
