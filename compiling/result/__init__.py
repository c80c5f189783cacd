"""The result of a compilation: files, table, recommendation.

In: measurements.
Out: `compile.json` and the recommended format.
"""
