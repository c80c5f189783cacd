"""What the readers and the writers of tables share: the error, the kinds of files, a table's interface.

In: names and values.
Out: kinds, streams, text.
Public: errors.TableError, kinds.Kind, kinds.kind_of, table.Table, table.Row, values.text_of,
values.json_value.
"""
