"""DeepFlow's first generation (2019): an LSTM language model on hardware made from a power budget.

A profile over the shared formulas. Where a rule of the reference is odd, the profile keeps it, says so
in a line, and the native model does the right thing.
"""

from costmodel.profiles.deepflow.configuration import Configuration, broken_guards
from costmodel.profiles.deepflow.report import DeepflowReport, price

__all__ = ["Configuration", "DeepflowReport", "broken_guards", "price"]
