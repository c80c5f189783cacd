"""Batches: reading a file, sending its lines in fair shares, collecting results, writing the output.

In: a batch record and its input file.
Out: jobs, and an output and an error file in the order of the input.
Public: store.BatchStore, leader.BatchLeader, segments.merged.
"""
