"""What a study keeps about itself, and what has changed since."""
