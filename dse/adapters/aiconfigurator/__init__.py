"""aiconfigurator: tables of timed kernels of inference libraries."""
