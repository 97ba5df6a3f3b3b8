"""Search spaces: parameters, derived columns, rules and objectives.

Rooms in the order in which they are read; those on one line do not import each other:

    formulas
    sections
    definition
    legal, workloads
    exact_parameters
    space
    lattice, listed_names, question
"""
