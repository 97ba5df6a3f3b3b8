"""Predictions beside measurements that others published, or of one's own."""
