"""SimAI's analytical mode [SimAI]_: closed forms over the rows of a workload.

A profile over the shared rows. Where a rule of the reference is odd, the profile keeps it and says so in a
line; where the reference has no number, there is none here either, and `missing` says why.

Rooms in the order in which they are read; those on one line do not know each other:

    workload_rows
    bandwidth, aicb_rows
    time, design_rows
    files, rules
"""

from costmodel.profiles.simai.bandwidth import REVISIONS, Busbw, Links, Revision
from costmodel.profiles.simai.rules import simai_step
from costmodel.profiles.simai.time import ENDLESS, Overlap, SimaiReport, Totals, endless_rows, missing, price

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
