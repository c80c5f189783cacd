"""The machine and its files: free memory, digests of files, a cache of measurements.

In: paths, measured values.
Out: sizes, digests, the values measured at an earlier start.
"""
