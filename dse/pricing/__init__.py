"""Evaluation of a space's designs, in batches, by the rules of a profile, on any workers."""
