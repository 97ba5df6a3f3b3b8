"""Launch files of any framework: the content of one, and the forms that adapters read and write.

Rooms in the order in which they are read; those on one line do not know each other:

    launch
    forms
"""
