"""Explanations of designs: parts of their costs, effects of changes, and parameters that matter."""
