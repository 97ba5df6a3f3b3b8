"""Comparison of predictions with measurements, published or the user's."""
