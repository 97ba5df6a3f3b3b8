"""Designs that a user names or asks for: sweeps, files, plans, the nearest that fits."""
