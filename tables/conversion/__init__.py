"""Conversions for services: rows of an uploaded table to requests, results to an output table, and previews.

They run in a child process under limits, since an uploaded Parquet or XLSX file is read by large libraries.
In: the options of a table, open files.
Out: the lines of a batch file, or a table with the columns of the answers.
Public: options.TableOptions, process.Conversion, process.ConversionFailed, process.lines_spec,
process.output_spec, process.preview_spec, seats.Seats.
"""
