"""What one micro-batch costs and keeps on a rank: kernels, their sums, exchanges, recomputation."""
