"""A program as kernel tables, evaluated on machines, with messages that overlap with kernels."""
