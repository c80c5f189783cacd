"""Shared by every command: errors with exit codes, output files, units.

In: paths and numbers.
Out: checked paths, human-readable text.
Public: errors.CliError, errors.BadInput, errors.ModelNotLoadable, output_files.check_writable,
units.date_and_time, units.shortened, errors.exit_code_of, installing.to_install, errors.table_errors.
"""
