"""HLO text as computations of instructions; how often each runs, and between which devices."""
