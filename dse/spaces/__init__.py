"""Search spaces: what may be chosen, what follows, what must hold, what is sought.

Rooms in the order in which they are read; those on one line do not know each other:

    formulas
    sections
    definition
    legal, workloads
    exact_parameters
    space
    lattice, listed_names, question
"""
