"""SimAI's analytical mode [SimAI]_: closed forms over the rows of a workload of AICB.

A profile over the shared rows. Where a rule of the reference is odd, the profile keeps it and notes it in a line; where
the reference has no number, the profile has none either, and `missing` explains why.

Rooms in the order in which they are read; those on one line do not import each other:

    workload_rows
    bandwidth
    time
    files
    design_rows
    command
"""
