"""Pipelines: stages and schedules, and how long all micro-batches take on them."""
