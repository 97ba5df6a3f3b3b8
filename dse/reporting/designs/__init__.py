"""Single designs for people: explanations, neighbours, differences, sensitivities, sweeps."""
