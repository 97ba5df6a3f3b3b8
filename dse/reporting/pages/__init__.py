"""Pages that are read without a network."""
