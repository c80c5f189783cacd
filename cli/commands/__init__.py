"""The commands, one module for each group: options in, calls to the other rooms, output.

In: the command line.
Out: exit codes and text.
"""
