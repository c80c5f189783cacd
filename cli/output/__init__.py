"""Results as a table: the columns of the input, then those of the answers; its first rows as text.

In: a table, and lines of batch output.
Out: a table file, and text.
Public: table_results.TableResults, preview.show_rows, preview.beginnings.
"""
