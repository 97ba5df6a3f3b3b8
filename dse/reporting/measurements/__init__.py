"""Predictions beside measurements, and calibrations, as text."""
