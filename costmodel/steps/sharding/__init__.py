"""The shardings of kernels that take least time, or send the fewest bytes, for each design."""
