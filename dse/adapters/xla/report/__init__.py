"""The report of a compiled program: its record, tables, and a table of several systems.

Rooms in the order in which they are read; those on one line do not know each other:

    step_times
    cost_record, cost_report
    machine_sweep
"""
