"""The commands that train, slice and export Medusa heads.

In: the command line.
Out: files of heads.
"""
