"""Shared by every command: errors with exit codes, output files, units.

In: paths and numbers.
Out: checked paths, human-readable text.
Public: errors.CliError, errors.BadInput, errors.ModelNotLoadable, output_files.check_writable, units.size,
units.shortened, errors.GatewayUnreachable, errors.table_errors.
"""
