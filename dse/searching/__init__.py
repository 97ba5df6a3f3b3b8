"""Studies: designs are proposed, evaluated and stored, or listed whole.

Rooms in the order in which they are read; those on one line do not import each other:

    bounding
    samplers
    trials
    batches
    study_attributes
    price_check
    study
    exact, starting_designs, nearest_design
    planned_study
"""
