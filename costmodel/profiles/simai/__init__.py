"""SimAI's analytical mode [SimAI]_: closed forms over the rows of a workload.

A profile over the shared rows. Where a rule of the reference is odd, the profile keeps it and says so in a
line; where the reference has no number, there is none here either, and `missing` says why.
"""

from costmodel.profiles.simai.bandwidth import Busbw, Links
from costmodel.profiles.simai.design import simai_step
from costmodel.profiles.simai.missing import ENDLESS, endless_rows, missing
from costmodel.profiles.simai.revision import REVISIONS, Revision
from costmodel.profiles.simai.time import Overlap, SimaiReport, Totals, price

__all__ = [
    "ENDLESS",
    "REVISIONS",
    "Busbw",
    "Links",
    "Overlap",
    "Revision",
    "SimaiReport",
    "Totals",
    "endless_rows",
    "missing",
    "price",
    "simai_step",
]
