"""Studies for people: fronts, comparisons, and why nothing is feasible."""
