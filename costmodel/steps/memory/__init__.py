"""Memory of a rank at the fullest moment of a step, by part of the model and by state."""
