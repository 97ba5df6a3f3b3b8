"""SimAI's analytical mode [SimAI]_: closed forms over the rows of a workload.

A profile over the shared rows. Where a rule of the reference is odd, the profile keeps it and says so in a
line; where the reference has no number, there is none here either, and `missing` says why.

Rooms in the order in which they are read; those on one line do not know each other:

    workload_rows, efficiency, revision
    bandwidth, aicb_run
    aicb_rows, time
    generator, design_layers, files, unsupported
    design_rows
    rules
"""

from costmodel.profiles.simai.bandwidth import Busbw, Links
from costmodel.profiles.simai.revision import REVISIONS, Revision
from costmodel.profiles.simai.rules import simai_step
from costmodel.profiles.simai.time import Overlap, SimaiReport, Totals, price
from costmodel.profiles.simai.unsupported import ENDLESS, endless_rows, missing

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
