"""The result of a compilation: files, table, recommendation.

In: measurements.
Out: `compile.json` and the recommended format.
Public: compilation.Compiled, compilation.Options, recommendation.Load, compilation.Row,
recommendation.Candidate, output_files.MadeFiles.
"""
