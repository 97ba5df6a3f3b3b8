"""Time, energy and memory of one micro-batch on a rank: kernels, exchanges, recomputation."""
