"""The commands that train, slice and export draft heads.

In: the command line.
Out: files of heads.
"""
