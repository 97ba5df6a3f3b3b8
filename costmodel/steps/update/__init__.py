"""The end of a step: gradients are reduced and clipped, weights updated and gathered."""
