"""Time, traffic and energy of kernels and collectives on a machine."""
