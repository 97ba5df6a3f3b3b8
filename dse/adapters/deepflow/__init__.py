"""DeepFlow in three generations: chips from power, area or stated sizes, with a GEMM, an LSTM or a transformer.

A profile over the shared formulas. Where a rule of the reference is odd, the profile keeps it, notes it in a line, and
the native model does the right thing.
"""
