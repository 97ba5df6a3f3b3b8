"""Predictions compared with measurements, and calibrations, as text."""
