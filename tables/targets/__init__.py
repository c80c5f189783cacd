"""Writers of tables, one module for each format.

In: rows of values.
Out: a file, complete when the writer is closed without an error.
Public: create_table.create_table, writer.TableWriter.
"""
