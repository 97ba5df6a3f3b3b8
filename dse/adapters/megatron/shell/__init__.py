"""The part of Bash that launch scripts are written in.

Rooms in the order in which they are read; those on one line do not know each other:

    tokens, values
    words
    shell
"""
