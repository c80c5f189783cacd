"""Shared by every command: errors with exit codes, output files, units.

In: paths and numbers.
Out: checked paths, human-readable text.
"""
