"""Designs as files of other programs.

Rooms in the order in which they are read; those on one line do not know each other:

    launch, chakra
    astra_sim
    artefacts
"""
