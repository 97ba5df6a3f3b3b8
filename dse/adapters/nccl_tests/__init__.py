"""nccl-tests: logs of timed collectives."""
