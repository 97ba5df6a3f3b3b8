"""A program as kernel tables, evaluated on machines, with messages beside kernels."""
