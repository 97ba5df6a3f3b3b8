"""Errors of predictions."""
