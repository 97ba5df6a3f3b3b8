"""Rules by which designs and files are evaluated: the native model, and reference models beside it.

Rooms in the order in which they are read; those on one line do not know each other:

    splits
    lstm_model
    work
    rules, deepflow, lstm
    native
    dfmodel, simai
    files, registry
"""
