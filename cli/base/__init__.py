"""What every command shares: errors with exit codes, output files, units.

In: paths and numbers.
Out: checked paths, text for people.
"""
