"""Functions for Python users and for commands: spaces, designs, searches, studies and files.

Rooms in the order in which they are read; those on one line do not import each other:

    design_files, exports, files
    designs, launch_files
    study
    searching

`dse` checks their arguments against their signatures, and classes those of their methods: `dse.arguments`.
"""
