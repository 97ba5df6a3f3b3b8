"""LSTM language models: their dimensions, splits of their products, and the time of a step.

Rooms in the order in which they are read; those on one line do not know each other:

    model
    step
"""
