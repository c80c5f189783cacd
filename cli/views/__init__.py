"""Text for the terminal: progress, tables, the live view.

In: records and snapshots.
Out: human-readable lines.
"""
