"""Text, pages and pictures for people.

Rooms in the order in which they are read; those on one line do not import each other:

    binding, catalogue
    design_table
    answers
    study_report, measurements, tuning_report
    designs
    studies, pictures
    pages
"""
