"""XLA: the text that it prints of a compiled program (HLO), read without XLA and evaluated by the native model.

Rooms in the order in which they are read; those on one line do not import each other:

    text
    work
    buffers
    training
    analysis
    summary
    steps
    hlo
    report
    command
"""
