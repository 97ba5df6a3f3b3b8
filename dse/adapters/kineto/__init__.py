"""Kineto: traces that the PyTorch profiler writes of the steps of one rank."""
