"""Readers of tables, one module for each format.

In: a file, a folder of text files, or a data frame of a program.
Out: a Table, whose rows can be read again and again; of a data frame its rows, once.
Public: open_table.open_table, frames.frame_rows.
"""
