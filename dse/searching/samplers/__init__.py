"""Samplers: Optuna's methods, and screening by bulk evaluation."""
