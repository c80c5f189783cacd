"""The machine: free memory, digests of files, measurements kept between starts.

In: paths and measured values.
Out: the same values at the next start.
"""
