"""DeepFlow's first generation (2019): an LSTM language model on hardware made from a power budget.

A profile over the shared formulas. Where a rule of the reference is odd, the profile keeps it, says so
in a line, and the native model does the right thing.
"""
