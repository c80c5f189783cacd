"""Readers of tables, one module for each format.

In: a file, or a folder of text files.
Out: a Table, whose rows can be read again and again.
Public: open_table.open_table.
"""
