"""What the steps of a compilation share: errors, formats, progress, state, checks of disk and memory.

In: options.
Out: checked values.
"""
